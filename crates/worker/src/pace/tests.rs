use super::work::REQUESTS_PER_CLIENT;
use super::*;

/// Ticks of 100 µs with so many requests each; they begin with a sleep or not.
fn run(pace: &mut Pace, ticks: u64, requests: u64, sleeps: bool) -> u64 {
    run_with(pace, ticks, Work { answered: requests, ..Work::default() }, sleeps)
}

/// Ticks of 100 µs with so much work each.
fn run_with(pace: &mut Pace, ticks: u64, each: Work, sleeps: bool) -> u64 {
    for _ in 0..ticks {
        let mut work = pace.work;
        work.answered += each.answered * (pace.elapsed_us / 100 + 1);
        work.clients += each.clients * (pace.elapsed_us / 100 + 1);
        work.asked += each.asked * (pace.elapsed_us / 100 + 1);
        work.pipelined += each.pipelined * (pace.elapsed_us / 100 + 1);
        let waited_us = if sleeps { 20 } else { 0 };
        pace.end_tick(waited_us, 100 - waited_us, work, 10);
    }
    pace.window_us()
}

/// Periods in which at most so many of fifty clients wait. Four requests are answered per sleep,
/// and the worker is busy for this share of its time.
fn run_crowd(pace: &mut Pace, periods: u64, waiting: u32, busy_percent: u64) -> u64 {
    run_asking(pace, periods, waiting, busy_percent, 0)
}

/// As [`run_crowd`]: periods of one batch of so many requests whose window is over.
fn run_batches(pace: &mut Pace, periods: u64, requests: u64) -> u64 {
    run_asking(pace, periods, 30, 90, requests)
}

fn run_asking(pace: &mut Pace, periods: u64, waiting: u32, busy_percent: u64, asked: u64) -> u64 {
    let mut now = Time::from_micros(1_000_000);
    let mut activity = Activity::with(waiting, 50);
    activity.received = pace.received;
    for _ in 0..periods {
        activity.received += 50;
        pace.may_go(&activity, now);
        now = pace.wake_at().unwrap_or(now);
        pace.end_tick(0, 0, pace.last, 50);
        pace.may_go(&activity, now);
        let mut work = pace.work;
        work.answered += 4;
        work.asked += asked;
        let worked_us = PERIOD_US * busy_percent / 100;
        pace.end_tick(PERIOD_US - worked_us - 1, worked_us + 1, work, 50);
        // That was several waits.
        pace.slow.note_lull(0);
    }
    pace.window_us()
}

#[test]
fn much_to_do_opens_the_window() {
    let mut pace = Pace::new(600);
    assert!((190..=200).contains(&run(&mut pace, 2000, 10, true)));
    let mut pace = Pace::new(600);
    assert!((390..=400).contains(&run(&mut pace, 2000, 15, true)));
    let mut pace = Pace::new(600);
    assert!((590..=600).contains(&run(&mut pace, 2000, 1, false)));
}

#[test]
fn an_open_loop_has_a_third_of_the_window_at_most() {
    let mut pace = Pace::new(600);
    let closed = Work { answered: 30, asked: 30, ..Work::default() };
    run_with(&mut pace, 2000, closed, true);
    let start = pace.window_us();
    let pipelined = Work { pipelined: 2, ..closed };
    assert!((190..=210).contains(&run_with(&mut pace, 2000, pipelined, true)), "from {start}");
    // An open loop is remembered for a while, then forgotten.
    assert!((190..=210).contains(&run_with(&mut pace, 2000, closed, true)));
    let ticks = u64::from(OPEN_PERIODS) * PERIOD_US / 100;
    assert!((590..=600).contains(&run_with(&mut pace, ticks, closed, true)));
    // A few clients that do not wait are no open loop.
    let few = Work { answered: 300, asked: 300, pipelined: 1, ..Work::default() };
    assert!((590..=600).contains(&run_with(&mut pace, 2000, few, true)));
    // Nor do they hide a crowd …
    pace.open_periods = 0;
    assert!(run_crowd(&mut pace, 200, 49, 90) > 590);
    // … which an open loop is not.
    pace.open_periods = OPEN_PERIODS;
    assert_eq!(run_crowd(&mut pace, 200, 49, 90), 0);
}

#[test]
fn a_complete_crowd_opens_the_window_to_the_maximum() {
    let mut pace = Pace::new(600);
    assert!((590..=600).contains(&run_crowd(&mut pace, 200, 49, 90)));
    // Fewer clients wait, and the worker has time to serve each at once.
    assert_eq!(run_crowd(&mut pace, 200, 30, 60), 0);
}

#[test]
fn clients_that_keep_the_worker_busy_open_the_window_if_batches_are_large() {
    let mut pace = Pace::new(600);
    assert!((590..=600).contains(&run_batches(&mut pace, 200, 25)));
    let least = (0..50).map(|_| run_batches(&mut pace, 1, 15)).min().unwrap();
    assert!(least < 450, "{least}");
}

#[test]
fn an_incomplete_or_unneeded_crowd_closes_the_window() {
    let mut pace = Pace::new(600);
    let start = run_crowd(&mut pace, 200, 49, 90);
    // Many wait, and the others do not come in time.
    let least = (0..50).map(|_| run_crowd(&mut pace, 1, 42, 90)).min().unwrap();
    assert!(least < start * 3 / 4, "{least}");
    run_crowd(&mut pace, 200, 49, 90);
    // They come, but the worker would have time to serve each at once.
    let least = (0..50).map(|_| run_crowd(&mut pace, 1, 49, 30)).min().unwrap();
    assert!(least < start * 3 / 4, "{least}");
}

/// Periods with a crowd of `active` clients, all of which wait at some time; so many are answered.
/// The worker is busy for this share of its time.
fn run_large_crowd(pace: &mut Pace, active: u32, answered: u64, busy_percent: u64) -> u64 {
    for _ in 0..200 {
        let mut activity = Activity::with(active, active);
        activity.received = pace.received + u64::from(active);
        assert!(pace.may_go(&activity, Time::ZERO));
        let mut work = pace.work;
        work.answered += answered;
        work.asked += answered;
        let worked_us = PERIOD_US * busy_percent / 100;
        pace.end_tick(PERIOD_US - worked_us - 1, worked_us + 1, work, active);
    }
    pace.window_us()
}

#[test]
fn a_large_crowd_has_half_of_the_latency_as_its_window() {
    // 250 of 500 clients are answered in 2 ms, and 250 of 100: a latency of 4 ms and of 800 µs.
    let mut pace = Pace::new(5000);
    assert!((1980..=2000).contains(&run_large_crowd(&mut pace, 500, 250, 90)));
    assert!((590..=620).contains(&run_large_crowd(&mut pace, 100, 250, 90)));
    assert!((3950..=CROWD_WINDOW_MAX_US).contains(&run_large_crowd(&mut pace, 5000, 250, 90)));
    // The worker would have time to serve them sooner.
    assert!((590..=620).contains(&run_large_crowd(&mut pace, 500, 250, 50)));
    // A lower maximum is configured.
    assert!((1480..=1500).contains(&run_large_crowd(&mut Pace::new(1500), 500, 250, 90)));
    let mut pace = Pace::new(300);
    assert!((290..=300).contains(&run_large_crowd(&mut pace, 500, 250, 90)));
    pace = Pace::new(5000);
    run_large_crowd(&mut pace, 500, 250, 90);
    pace.set_hold_max_us(1000);
    assert_eq!(pace.window_us(), 1000);
}

/// Ticks of 100 µs, busy for this share of them, in which so many of the active clients send a
/// request and so many are answered.
fn run_ticks(pace: &mut Pace, ticks: u64, found: u64, active: u32, busy_percent: u64) -> u64 {
    for _ in 0..ticks {
        let mut work = pace.last;
        work.asked += found / 2;
        work.answered += found / 2;
        pace.end_tick(100 - busy_percent, busy_percent, work, active);
    }
    pace.nap().as_micros() as u64
}

#[test]
fn many_clients_in_small_groups_cause_naps() {
    let mut pace = Pace::new(600);
    run(&mut pace, 2000, 30, true);
    // The latency is 2,500 µs: 300 clients at 12 requests in 100 µs.
    assert_eq!(run_ticks(&mut pace, 100, 24, 300, 90), 50);
    // A shorter latency makes a shorter nap, and with much to do there is none.
    assert_eq!(run_ticks(&mut pace, 100, 180, 300, 90), 0);
    pace.nap.note_tick(Work::default(), 300);
    assert_eq!(pace.nap(), Duration::from_micros(16));
    // What is found after a nap does not count as little to do.
    let sleeps = pace.sleeps;
    pace.end_tick(10, 10, pace.last, 300);
    assert_eq!(pace.sleeps, sleeps);
    pace.end_tick(60, 10, pace.last, 300);
    assert_eq!(pace.sleeps, sleeps + 1);
}

#[test]
fn no_nap_with_spare_time_few_clients_an_open_loop_or_no_window() {
    let wide = || {
        let mut pace = Pace::new(600);
        run(&mut pace, 2000, 30, true);
        pace
    };
    assert!(run_ticks(&mut wide(), 100, 24, 256, 90) > 0);
    assert_eq!(run_ticks(&mut wide(), 100, 24, 256, 60), 0);
    assert_eq!(run_ticks(&mut wide(), 100, 24, 255, 90), 0);
    let mut open = wide();
    open.open_periods = OPEN_PERIODS;
    assert_eq!(run_ticks(&mut open, 100, 24, 256, 90), 0);
    let mut off = wide();
    off.set_hold_max_us(0);
    assert_eq!(off.nap(), Duration::ZERO);
    assert_eq!(run_ticks(&mut off, 100, 24, 256, 90), 0);
    // An idle time ends it.
    let mut silent = wide();
    assert!(run_ticks(&mut silent, 100, 24, 256, 90) > 0);
    silent.end_tick(10_000, 10, silent.last, 256);
    assert_eq!(silent.nap(), Duration::ZERO);
}

#[test]
fn a_few_clients_are_no_crowd() {
    let mut pace = Pace::new(600);
    for _ in 0..200 {
        pace.may_go(&Activity::with(10, 10), Time::ZERO);
        let mut work = pace.work;
        work.answered += 4;
        pace.end_tick(100, PERIOD_US, work, 10);
    }
    assert_eq!(pace.window_us(), 0);
}

#[test]
fn light_load_closes_the_window() {
    let mut pace = Pace::new(600);
    run(&mut pace, 2000, 12, true);
    assert_eq!(run(&mut pace, 2000, 4, true), 0);
}

#[test]
fn clients_with_one_request_each_open_the_window() {
    let mut pace = Pace::new(600);
    // One or two of them meet others in a wake-up; one alone counts as three.
    let window =
        run_with(&mut pace, 2000, Work { answered: 1, clients: 1, ..Work::default() }, true);
    assert!(window > 100, "{window}");
    assert_eq!(run(&mut pace, 2000, (1 + REQUESTS_PER_CLIENT) / 3, true), 0);
}

#[test]
fn an_idle_period_closes_the_window_at_once() {
    let mut pace = Pace::new(600);
    run(&mut pace, 2000, 12, true);
    let work = pace.work;
    assert!(pace.end_tick(10_000, 10, work, 10));
    assert_eq!(pace.window_us(), 0);
}

#[test]
fn a_smaller_maximum_counts_at_once() {
    let mut pace = Pace::new(600);
    run(&mut pace, 2000, 12, true);
    pace.set_hold_max_us(20);
    assert_eq!(pace.window_us(), 20);
    run(&mut pace, 2000, 12, true);
    assert!(pace.window_us() <= 20);
}

#[test]
fn zero_turns_it_off() {
    let mut pace = Pace::new(0);
    assert_eq!(run(&mut pace, 2000, 12, true), 0);
    assert!(pace.may_go(&Activity::default(), Time::ZERO));
}

/// A tick of a microsecond with this work.
fn run_tick(pace: &mut Pace, each: Work) {
    let mut work = pace.last;
    work.answered += each.answered;
    work.asked += each.asked;
    work.pipelined += each.pipelined;
    pace.end_tick(0, 1, work, 10);
}

#[test]
fn it_polls_again_while_requests_come() {
    let (some, all) = (Activity::with(8, 10), Activity::with(10, 10));
    let answer = Work { answered: 1, ..Work::default() };
    for found in [Work { asked: 1, ..answer }, Work { pipelined: 1, ..answer }] {
        let mut pace = Pace::new(0);
        run_tick(&mut pace, found);
        assert!(!pace.may_go(&some, Time::ZERO));
        // At once: the worker does not sleep.
        assert_eq!(pace.wake_at(), Some(Time::ZERO));
        // The first poll finds a request, the next one none.
        run_tick(&mut pace, found);
        assert!(!pace.may_go(&some, Time::ZERO));
        run_tick(&mut pace, answer);
        assert!(pace.may_go(&some, Time::ZERO));
        assert_eq!(pace.wake_at(), None);
        // Nobody is left who could send a request.
        run_tick(&mut pace, found);
        assert!(pace.may_go(&all, Time::ZERO));
        // Not for ever.
        let mut looks = 0;
        run_tick(&mut pace, found);
        while !pace.may_go(&some, Time::ZERO) {
            // Another call in the same tick is no poll.
            assert!(!pace.may_go(&some, Time::ZERO));
            looks += 1;
            run_tick(&mut pace, found);
        }
        assert_eq!(looks, LOOKS_MAX);
    }
}

#[test]
fn an_expired_wide_window_needs_no_poll() {
    let mut pace = Pace::new(600);
    run(&mut pace, 2000, 30, true);
    assert!(pace.is_trusting());
    assert!(!pace.may_go(&Activity::with(8, 10), Time::ZERO));
    run_tick(&mut pace, Work { asked: 1, ..Work::default() });
    let over = Time::ZERO + Duration::from_micros(pace.window_us());
    assert!(pace.may_go(&Activity::with(8, 10), over));
}

#[test]
fn held_output_goes_when_the_window_ends_or_no_client_is_left() {
    let mut pace = Pace::new(600);
    run(&mut pace, 2000, 12, true);
    let window = Duration::from_micros(pace.window_us());
    let activity = Activity::with(8, 10);
    let now = Time::from_micros(1_000_000);
    assert!(!pace.may_go(&activity, now));
    assert_eq!(pace.wake_at(), Some(now + window));
    assert!(!pace.may_go(&activity, now + window / 2));
    assert!(pace.may_go(&activity, now + window));
    assert_eq!(pace.wake_at(), None);
}

#[test]
fn one_in_fifty_or_twenty_may_be_missing() {
    let absent = [1, 16, 19, 20, 50, 69, 70, 100, 200, 1000].map(absent_max);
    assert_eq!(absent, [0, 0, 0, 1, 1, 1, 2, 2, 4, 20]);
    let mut pace = Pace::new(600);
    run(&mut pace, 2000, 12, true);
    assert!(!pace.may_go(&Activity::with(18, 20), Time::ZERO));
    assert!(pace.may_go(&Activity::with(19, 20), Time::ZERO));
}

/// When the worker wakes by itself, in microseconds from `now`, if something is held back at `now`
/// and nothing else happens.
fn wakes_after(pace: &mut Pace, now: Time) -> u64 {
    assert!(!pace.may_go(&Activity::with(8, 10), now));
    pace.wake_at().unwrap().micros_since(now)
}

#[test]
fn a_wide_window_needs_no_timer_until_one_for_the_longest_wait_has_rung() {
    let mut pace = Pace::new(5000);
    let window = run(&mut pace, 2000, 20, true);
    assert!((590..=WINDOW_MAX_US).contains(&window), "{window}");
    let now = Time::from_micros(1_000_000);
    assert_eq!(wakes_after(&mut pace, now), 5000);
    // An event ends the window.
    let activity = Activity::with(8, 10);
    assert!(!pace.may_go(&activity, now + Duration::from_micros(window - 1)));
    assert!(pace.may_go(&activity, now + Duration::from_micros(window)));
    assert_eq!(wakes_after(&mut pace, now), 5000);
    // Nothing happened.
    assert!(pace.may_go(&activity, now + Duration::from_micros(5000)));
    assert_eq!(wakes_after(&mut pace, now), window);
    let ticks = u64::from(DISTRUST_PERIODS) * PERIOD_US / 100;
    run(&mut pace, ticks - 20, 20, true);
    assert_eq!(pace.wake_at().unwrap().micros_since(now), window);
    run(&mut pace, 20, 20, true);
    assert_eq!(pace.wake_at().unwrap().micros_since(now), 5000);
}

#[test]
fn only_wide_windows_without_naps_or_an_open_loop_need_no_timer() {
    let now = Time::from_micros(1_000_000);
    let mut narrow = Pace::new(5000);
    let window = run(&mut narrow, 2000, 12, true);
    assert!(window < WINDOW_MAX_US);
    assert_eq!(wakes_after(&mut narrow, now), window);
    let mut open = Pace::new(5000);
    let window = run(&mut open, 2000, 20, true);
    open.open_periods = OPEN_PERIODS;
    assert_eq!(wakes_after(&mut open, now), window);
    let mut napping = Pace::new(5000);
    run(&mut napping, 2000, 20, true);
    run_ticks(&mut napping, 100, 24, 300, 90);
    let window = napping.window_us();
    assert!(window * 100 >= WINDOW_MAX_US * WIDE_PERCENT);
    assert_eq!(wakes_after(&mut napping, now), window);
    for hold_max_us in [30, 600, 900] {
        let mut pace = Pace::new(hold_max_us);
        assert!(run(&mut pace, 2000, 20, true) <= hold_max_us);
        assert_eq!(wakes_after(&mut pace, now), hold_max_us);
    }
}

/// Holds something back at `now` until the window is over, with so many of fifty clients waiting
/// and after such a lull, unless it goes at once.
fn run_out(pace: &mut Pace, waiting: u32, lull_us: u64, now: Time) -> bool {
    let mut activity = Activity::with(waiting, 50);
    activity.received = pace.received + 50;
    let goes_at_once = pace.may_go(&activity, now);
    if !goes_at_once {
        pace.slow.note_lull(lull_us);
        assert!(pace.may_go(&activity, now + Duration::from_micros(WINDOW_MAX_US)));
    }
    goes_at_once
}

/// A policy that holds batches of fifty clients back as long as it may.
fn wide() -> Pace {
    let mut pace = Pace::new(5000);
    run(&mut pace, 2000, 20, true);
    pace
}

#[test]
fn repeatedly_late_clients_are_not_waited_for() {
    let now = Time::from_micros(1_000_000);
    let mut pace = wide();
    // A pause of all clients shows nothing about each, and a batch may come together by chance.
    for waiting in [5, 40, 39, 40] {
        assert!(!run_out(&mut pace, waiting, 150, now));
        assert!(run_out(&mut pace, 49, 150, now));
        assert_eq!(pace.slow.count(), 0);
    }
    assert!(!run_out(&mut pace, 38, 150, now));
    assert_eq!(pace.slow.count(), 11 - 1);
    assert!(run_out(&mut pace, 40, 150, now));
    assert!(!run_out(&mut pace, 39, 150, now));
    // Clients whose request ends the wait are slow too. There were four such batches and the one
    // before, which showed eleven, then five more.
    let mut activity = Activity::with(37, 50);
    for count in [10, 10, 10, 11, 11, 11, 11, 11, 13] {
        activity.received = pace.received + 50;
        activity.waiting = 37;
        assert!(!pace.may_go(&activity, now));
        activity.waiting = 40;
        assert!(pace.may_go(&activity, now));
        assert_eq!(pace.slow.count(), count);
    }
    activity.received = pace.received + 50;
    activity.waiting = 37;
    assert!(pace.may_go(&activity, now));
}

#[test]
fn a_batch_that_waits_for_new_requests_reveals_no_slow_clients() {
    let now = Time::from_micros(1_000_000);
    let mut pace = wide();
    for _ in 0..5 {
        assert!(!run_out(&mut pace, 40, 150, now));
        // So many wait that nobody need send more, but few have sent anything since the last batch.
        let mut activity = Activity::with(49, 50);
        activity.received = pace.received + 10;
        assert!(!pace.may_go(&activity, now));
        assert!(pace.may_go(&activity, now + Duration::from_micros(WINDOW_MAX_US)));
    }
    assert_eq!(pace.slow.count(), 10);
}

#[test]
fn occasionally_late_clients_are_waited_for() {
    let now = Time::from_micros(1_000_000);
    let mut pace = wide();
    for _ in 0..10 {
        for batch in 0..slow::BATCHES {
            let is_late = batch % 4 == 0;
            assert_eq!(run_out(&mut pace, if is_late { 40 } else { 49 }, 150, now), !is_late);
        }
    }
    for _ in 0..slow::BATCHES {
        assert!(!run_out(&mut pace, 40, 149, now));
    }
    assert_eq!(pace.slow.count(), 0);
}

/// Ten of fifty are slow, and the time for which they are not waited for has passed.
fn with_slow_ones_tried_anew(now: Time) -> Pace {
    let mut pace = wide();
    while pace.slow.count() == 0 {
        run_out(&mut pace, 40, 150, now);
    }
    let ticks = u64::from(slow::PERIODS) * PERIOD_US / 100;
    run(&mut pace, ticks - 20, 20, true);
    assert_eq!(pace.slow.count(), 10);
    run(&mut pace, 20, 20, true);
    assert_eq!(pace.slow.count(), 0);
    pace
}

#[test]
fn one_batch_reveals_clients_that_are_still_slow() {
    let now = Time::from_micros(1_000_000);
    let mut pace = with_slow_ones_tried_anew(now);
    assert!(!run_out(&mut pace, 42, 150, now));
    assert_eq!(pace.slow.count(), 8);
    // A pause of more than the known ones shows nothing about the others.
    assert!(!run_out(&mut pace, 20, 150, now));
    assert_eq!(pace.slow.count(), 10);
    assert!(run_out(&mut pace, 40, 150, now));
    // Fewer before do not lower the count.
    for _ in 0..3 {
        assert!(!run_out(&mut pace, 38, 150, now));
    }
    assert_eq!(pace.slow.count(), 10);
}

#[test]
fn clients_that_recover_are_waited_for_again() {
    let now = Time::from_micros(1_000_000);
    let mut pace = with_slow_ones_tried_anew(now);
    for _ in 0..slow::BATCHES {
        assert!(run_out(&mut pace, 49, 150, now));
    }
    assert!(!run_out(&mut pace, 40, 150, now));
    assert_eq!(pace.slow.count(), 0);
}

#[test]
fn a_wide_window_waits_for_new_requests_of_much_of_the_crowd() {
    let mut pace = Pace::new(600);
    run(&mut pace, 2000, 20, true);
    let now = Time::from_micros(1_000_000);
    let mut activity = Activity::with(50, 50);
    activity.received = 20;
    assert!(pace.may_go(&activity, now));
    activity.received += 19;
    assert!(!pace.may_go(&activity, now));
    activity.received += 1;
    assert!(pace.may_go(&activity, now));
    // The window bounds the wait.
    activity.received += 1;
    assert!(!pace.may_go(&activity, now));
    assert!(pace.may_go(&activity, pace.wake_at().unwrap()));
    // A narrow window gathers one burst and nothing more.
    run(&mut pace, 2000, 12, true);
    activity.received += 1;
    assert!(pace.may_go(&activity, now));
}
