use proptest::prelude::*;

use super::*;

const NONE: [u16; 0] = [];

fn at(port: u16) -> Address {
    Address { host: "10.0.0.1".to_owned(), port }
}

fn view(primary: u16, config_epoch: u64) -> Option<View> {
    let replicas = [1, 2, 3].into_iter().filter(|port| *port != primary).map(at).collect();
    Some(View { primary: at(primary), config_epoch, replicas })
}

fn primary(replid: &str, former: Option<(&str, u64)>) -> Report {
    let former = former.map(|(replid, end)| (replid.to_owned(), end));
    Report::Primary { replid: replid.to_owned(), former }
}

fn replica(replid: &str, offset: u64) -> Report {
    Report::Replica { replid: replid.to_owned(), offset }
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Where the group has switched to since it was asked last.
fn switches(group: &mut Group) -> Vec<u16> {
    let outputs = std::iter::from_fn(|| group.poll_output());
    let to = |output| match output {
        Output::Switch { to, .. } => Some(to.port),
        Output::Changed { .. } | Output::Unconfirmed { .. } => None,
    };
    outputs.filter_map(to).collect()
}

/// Of three Sentinels, with the primary 1 and replicas 2 and 3 of its history "a", at offset 100.
fn stable(now: Instant) -> Group {
    let mut group = Group::new(3, Some(at(1)), Some(0), &Lineage::default(), now);
    for sentinel in 0..3 {
        group.sentinel_says(sentinel, view(1, 0), now);
    }
    group.server_says(&at(1), primary("a", None), now);
    group.server_says(&at(2), replica("a", 100), now);
    group.server_says(&at(3), replica("a", 90), now);
    assert_eq!((switches(&mut group), group.state()), (vec![], State::Stable));
    group
}

#[test]
fn the_first_primary_is_what_a_majority_names() {
    let now = Instant::now();
    let mut group = Group::new(3, None, None, &Lineage::default(), now);
    assert_eq!(group.state(), State::Unknown);
    group.sentinel_says(0, view(2, 9), now);
    group.sentinel_says(0, view(2, 9), now);
    assert_eq!(switches(&mut group), NONE);
    group.sentinel_says(1, view(1, 4), now);
    assert_eq!(switches(&mut group), NONE);
    group.sentinel_says(2, view(1, 4), now);
    assert_eq!((switches(&mut group), group.state()), (vec![1], State::Switching));
    group.put_into_effect(Some(at(1)), None, &Lineage::default(), now);
    assert_eq!((switches(&mut group), group.state()), (vec![], State::Stable));
    assert_eq!(group.config_epoch(), Some(4));
}

#[test]
fn a_majority_with_a_new_epoch_switches() {
    let now = Instant::now();
    let mut group = stable(now);
    group.sentinel_says(0, view(2, 1), now);
    assert_eq!((switches(&mut group), group.state()), (vec![], State::Suspect));
    group.sentinel_says(1, view(2, 1), now);
    assert_eq!(switches(&mut group), [2]);
    // It is asked for once, and again when it does not come into effect.
    group.sentinel_says(2, view(2, 1), now);
    assert_eq!(switches(&mut group), NONE);
    group.handle_timeout(now + SWITCH_TIMEOUT);
    assert_eq!(switches(&mut group), [2]);
    // What the former primary says, when it returns, is all the same.
    group.put_into_effect(Some(at(2)), None, &Lineage::default(), now);
    group.server_says(&at(1), primary("a", None), now);
    group.sentinel_says(0, view(1, 0), now);
    assert_eq!((switches(&mut group), group.primary()), (vec![], Some(&at(2))));
}

#[test]
fn old_views_do_not_count() {
    let now = Instant::now();
    let mut group = stable(now);
    group.sentinel_says(0, view(2, 1), now);
    group.sentinel_says(1, view(2, 1), now + VIEW_MAX_AGE);
    assert_eq!(switches(&mut group), NONE);
    group.sentinel_says(1, None, now + VIEW_MAX_AGE);
    group.sentinel_says(0, view(2, 1), now + VIEW_MAX_AGE);
    assert_eq!(switches(&mut group), NONE);
}

#[test]
fn a_minority_decides_nothing_whatever_it_says() {
    let now = Instant::now();
    let mut group = stable(now);
    for (seconds, epoch) in [(0, 1), (1, 99), (60, u64::MAX)] {
        let now = now + ms(seconds * 1000);
        group.sentinel_says(0, view(3, epoch), now);
        group.server_lost(&at(1), "refuses connections", now);
        assert_eq!(switches(&mut group), NONE);
    }
    // Two of three are dead, and the primary with them.
    assert_eq!(group.primary(), Some(&at(1)));
}

#[test]
fn a_promotion_switches_before_the_sentinels_agree() {
    let now = Instant::now();
    let mut group = stable(now);
    group.sentinel_tells(Event::Nominated(at(2)), now);
    assert_eq!((switches(&mut group), group.state()), (vec![], State::Suspect));
    group.server_says(&at(2), primary("b", Some(("a", 101))), now);
    assert_eq!(switches(&mut group), [2]);
    group.put_into_effect(Some(at(2)), None, &Lineage::default(), now);
    assert!(group.is_urgent());
    // The majority still names the former one, by the former epoch.
    for sentinel in 0..3 {
        group.sentinel_says(sentinel, view(1, 0), now + ms(500));
    }
    assert_eq!(switches(&mut group), NONE);
    let later = now + CONFIRM_TIMEOUT;
    group.handle_timeout(later);
    let unconfirmed = Output::Unconfirmed { primary: at(2) };
    assert!(std::iter::from_fn(|| group.poll_output()).any(|output| output == unconfirmed));
    for sentinel in 0..3 {
        group.sentinel_says(sentinel, view(2, 1), later);
    }
    assert_eq!((switches(&mut group), group.config_epoch()), (vec![], Some(1)));
    group.server_says(&at(2), primary("b", None), later);
    assert_eq!((group.state(), group.is_urgent()), (State::Stable, false));
}

#[test]
fn a_promotion_needs_both_words_and_the_history() {
    let reports: [(&str, bool, Report); 6] = [
        ("nobody has named it", false, primary("b", Some(("a", 101)))),
        ("it is a replica", true, replica("a", 101)),
        ("it was never of the group", true, primary("x", None)),
        ("its history is another one", true, primary("b", Some(("y", 101)))),
        ("it branched off before", true, primary("b", Some(("a", 99)))),
        ("it does not tell", true, Report::Other),
    ];
    for (why, is_named, report) in reports {
        let now = Instant::now();
        let mut group = stable(now);
        if is_named {
            group.sentinel_tells(Event::Nominated(at(2)), now);
        }
        group.server_says(&at(2), report, now);
        assert_eq!(switches(&mut group), NONE, "{why}");
    }
    let now = Instant::now();
    let mut group = stable(now);
    group.sentinel_tells(Event::Nominated(at(2)), now);
    let report = primary("b", Some(("a", 101)));
    group.server_says(&at(2), report.clone(), now + NOMINATION_MAX_AGE);
    assert_eq!(switches(&mut group), NONE, "it was named long ago");
    group.sentinel_tells(Event::Nominated(at(9)), now + NOMINATION_MAX_AGE);
    group.server_says(&at(9), report, now + NOMINATION_MAX_AGE);
    assert_eq!(switches(&mut group), NONE, "it may have started with an old copy");
}

#[test]
fn a_promotion_that_was_taken_back_is_left_again() {
    let mut now = Instant::now();
    let mut group = stable(now);
    group.sentinel_tells(Event::Nominated(at(2)), now);
    group.server_says(&at(2), primary("b", Some(("a", 101))), now);
    group.put_into_effect(Some(at(2)), None, &Lineage::default(), now);
    assert_eq!(switches(&mut group), [2]);
    let mut said = |group: &mut Group, two: Report, seconds: u64| {
        let mut switched = Vec::new();
        for _ in 0..seconds * 2 {
            now += ms(500);
            (0..3).for_each(|sentinel| group.sentinel_says(sentinel, view(1, 0), now));
            group.server_says(&at(1), primary("a", None), now);
            group.server_says(&at(2), two.clone(), now);
            switched.extend(switches(group));
        }
        switched
    };
    // As long as it says that it is one, it is.
    assert_eq!(said(&mut group, primary("b", None), 30), NONE);
    assert_eq!(said(&mut group, replica("a", 200), 3), NONE);
    assert_eq!(said(&mut group, replica("a", 200), 2), [1]);
}

/// After a promotion that no majority has confirmed; the primary 1 was at epoch 3.
fn promoted(now: Instant) -> Group {
    let mut group = stable(now);
    (0..3).for_each(|sentinel| group.sentinel_says(sentinel, view(1, 3), now));
    group.sentinel_tells(Event::Nominated(at(2)), now);
    group.server_says(&at(2), primary("b", Some(("a", 101))), now);
    group.server_says(&at(3), replica("b", 120), now);
    assert_eq!(switches(&mut group), [2]);
    group.put_into_effect(Some(at(2)), None, &Lineage::default(), now);
    group
}

#[test]
fn who_watches_next_goes_on_from_what_was_known() {
    let now = Instant::now();
    let group = promoted(now);
    let lineage = group.lineage();
    assert_eq!(
        (lineage.superseded.clone(), lineage.followers.clone()),
        (vec![at(1)], vec![(at(3), 120)])
    );
    let next = Group::new(3, group.primary().cloned(), group.config_epoch(), &lineage, now);
    // As does one that began with the primary before, when the change comes into effect.
    let mut late = Group::new(3, Some(at(1)), Some(0), &Lineage::default(), now);
    late.put_into_effect(Some(at(2)), Some(3), &lineage, now);
    for mut next in [next, late, group.watched_by(3)] {
        for epoch in [3, 4] {
            (0..3).for_each(|sentinel| next.sentinel_says(sentinel, view(1, epoch), now));
            assert_eq!((switches(&mut next), next.primary()), (vec![], Some(&at(2))));
        }
        // A promotion that goes on from there is followed.
        next.sentinel_tells(Event::Nominated(at(3)), now);
        next.server_says(&at(3), primary("c", Some(("b", 119))), now);
        assert_eq!(switches(&mut next), NONE, "it had come further");
        next.server_says(&at(3), primary("c", Some(("b", 121))), now);
        assert_eq!(switches(&mut next), [3]);
        assert_eq!(next.lineage().superseded, [at(1), at(2)]);
        (0..3).for_each(|sentinel| next.sentinel_says(sentinel, view(3, 5), now));
        assert_eq!((switches(&mut next), next.config_epoch()), (vec![], Some(5)));
        assert_eq!(next.lineage().superseded, []);
    }
}

#[test]
fn what_is_in_effect_by_what_was_known_before_is_left_again() {
    let now = Instant::now();
    let mut group = promoted(now);
    // Of a reload that began before the promotion.
    group.put_into_effect(Some(at(1)), Some(3), &Lineage::default(), now);
    assert_eq!(group.primary(), Some(&at(2)));
    group.handle_timeout(now + SWITCH_TIMEOUT);
    assert_eq!(switches(&mut group), [2]);
}

#[test]
fn sentinels_that_were_set_up_anew_are_followed_when_the_primary_is_gone() {
    let mut now = Instant::now();
    let mut group = Group::new(3, Some(at(1)), Some(7), &Lineage::default(), now);
    let mut switched = Vec::new();
    for half_second in 0..24 {
        now += ms(500);
        (0..3).for_each(|sentinel| group.sentinel_says(sentinel, view(2, 0), now));
        group.server_lost(&at(1), "refuses connections", now);
        group.server_says(&at(2), primary("b", None), now);
        switched.extend(switches(&mut group).into_iter().map(|to| (half_second, to)));
    }
    assert_eq!(switched, [(20, 2)]);
    assert_eq!(group.config_epoch(), Some(0));
}

#[test]
fn the_group_is_suspect_until_the_primary_is_well() {
    let now = Instant::now();
    let mut group = stable(now);
    group.server_lost(&at(1), "refuses connections", now);
    assert_eq!(group.state(), State::Suspect);
    let later = now + SUSPECT_MIN;
    group.handle_timeout(later);
    assert_eq!(group.state(), State::Suspect);
    group.server_says(&at(1), Report::Other, later);
    assert_eq!(group.state(), State::Stable);
    // A replica that is down makes it so once.
    group.server_lost(&at(2), "refuses connections", later);
    assert_eq!(group.state(), State::Suspect);
    let later = later + SUSPECT_MIN;
    group.server_lost(&at(2), "refuses connections", later);
    group.server_says(&at(1), Report::Other, later);
    assert_eq!(group.state(), State::Stable);
}

#[test]
fn what_sentinels_name_is_bounded() {
    let now = Instant::now();
    let mut group = stable(now);
    for port in 100..200 {
        group.sentinel_tells(Event::Nominated(at(port)), now);
        let replicas = (port * 10..port * 10 + 60).map(at).collect();
        let view = View { primary: at(port), config_epoch: u64::from(port), replicas };
        group.sentinel_says(0, Some(view), now);
        group.server_says(&at(port), Report::Other, now);
    }
    assert!(group.servers().len() <= SERVERS_MAX && group.servers.len() <= SERVERS_MAX + 1);
    assert!(group.nominees.len() <= NOMINEES_MAX);
    assert!(group.servers().contains(&at(1)));
}

/// A group with Sentinels as they are: each learns of a failover when it likes, some never, and one may
/// lie; servers that were superseded say for a while that they are primaries.
#[derive(Clone, Debug)]
enum Step {
    Failover {
        to: u16,
    },
    /// A Sentinel says what it knows.
    Say {
        sentinel: usize,
    },
    /// It learns how things are.
    Learn {
        sentinel: usize,
    },
    Nominate,
    Report {
        server: u16,
    },
    /// It learns that it is a primary no more.
    Demote {
        server: u16,
    },
    Lose {
        server: u16,
    },
    /// A restart without data.
    Restart {
        server: u16,
    },
    Effect,
    Wait {
        milliseconds: u64,
    },
}

const SERVERS: u16 = 4;

fn step() -> impl Strategy<Value = Step> {
    let server = || 1..=SERVERS;
    prop_oneof![
        1 => server().prop_map(|to| Step::Failover { to }),
        6 => (0..3usize).prop_map(|sentinel| Step::Say { sentinel }),
        3 => (0..3usize).prop_map(|sentinel| Step::Learn { sentinel }),
        1 => Just(Step::Nominate),
        6 => server().prop_map(|server| Step::Report { server }),
        1 => server().prop_map(|server| Step::Demote { server }),
        2 => server().prop_map(|server| Step::Lose { server }),
        1 => server().prop_map(|server| Step::Restart { server }),
        3 => Just(Step::Effect),
        2 => (1..4000u64).prop_map(|milliseconds| Step::Wait { milliseconds }),
    ]
}

/// Its own id, and whose it was before, up to where.
type History = (String, Option<(String, u64)>);

struct World {
    group: Group,
    now: Instant,
    /// Who was the primary in each configuration epoch.
    primaries: Vec<u16>,
    /// The epoch that each Sentinel knows.
    known: [usize; 3],
    /// Of each server: the history that it has, and where it branched off, if it is a primary by its
    /// own word.
    servers: Vec<Option<History>>,
    /// What a replica follows.
    history: String,
    offset: u64,
    restarts: u32,
    /// It lies: names what it likes, with any epoch.
    liar: Option<usize>,
    aimed: u16,
}

impl World {
    fn new(liar: Option<usize>) -> Self {
        let now = Instant::now();
        let mut servers = vec![None; usize::from(SERVERS) + 1];
        servers[1] = Some(("h0".to_owned(), None));
        Self {
            group: Group::new(3, Some(at(1)), Some(0), &Lineage::default(), now),
            now,
            primaries: vec![1],
            known: [0; 3],
            servers,
            history: "h0".into(),
            offset: 100,
            restarts: 0,
            liar,
            aimed: 1,
        }
    }

    fn current(&self) -> u16 {
        *self.primaries.last().expect("there is a first one")
    }

    fn take(&mut self, step: &Step) {
        let now = self.now;
        match *step {
            Step::Failover { to } if to != self.current() => {
                // Nor do they do so twice in a row.
                self.now += ms(4000);
                self.group.handle_timeout(self.now);
                // Two Sentinels have to elect who does it, and know what was before.
                let honest = (0..3).filter(|it| self.liar != Some(*it)).take(2);
                honest.for_each(|sentinel| self.known[sentinel] = self.primaries.len() - 1);
                let end = self.offset + 1;
                let history = format!("h{}", self.primaries.len());
                self.servers[usize::from(to)] = Some((
                    history.clone(),
                    Some((std::mem::replace(&mut self.history, history), end)),
                ));
                self.primaries.push(to);
                self.offset += 50;
            }
            Step::Failover { .. } => {}
            Step::Say { sentinel } if self.liar == Some(sentinel) => {
                let epoch = self.restarts.into();
                let view = View { primary: at(4), config_epoch: epoch, replicas: vec![at(77)] };
                self.group.sentinel_says(sentinel, Some(view), now);
            }
            Step::Say { sentinel } => {
                let epoch = self.known[sentinel];
                let replicas = (1..=SERVERS).filter(|it| *it != self.primaries[epoch]);
                let view = View {
                    primary: at(self.primaries[epoch]),
                    config_epoch: epoch as u64,
                    replicas: replicas.map(at).collect(),
                };
                self.group.sentinel_says(sentinel, Some(view), now);
            }
            Step::Learn { sentinel } => self.known[sentinel] = self.primaries.len() - 1,
            Step::Nominate => {
                self.group.sentinel_tells(Event::Nominated(at(self.current())), now);
            }
            Step::Report { server } => {
                self.offset += 1;
                let report = match &self.servers[usize::from(server)] {
                    Some((replid, former)) => {
                        Report::Primary { replid: replid.clone(), former: former.clone() }
                    }
                    None => replica(&self.history, self.offset),
                };
                self.group.server_says(&at(server), report, now);
            }
            Step::Demote { server } if server != self.current() => {
                self.servers[usize::from(server)] = None;
            }
            Step::Demote { .. } => {}
            Step::Lose { server } => self.group.server_lost(&at(server), "is gone", now),
            Step::Restart { server } => {
                self.restarts += 1;
                let replid = format!("r{}", self.restarts);
                let is_primary = self.servers[usize::from(server)].is_some();
                if is_primary {
                    if server == self.current() {
                        self.history = replid.clone();
                    }
                    self.servers[usize::from(server)] = Some((replid, None));
                }
            }
            Step::Effect => {
                let primary = self.group.primary().cloned();
                self.group.put_into_effect(primary, None, &Lineage::default(), now);
            }
            Step::Wait { milliseconds } => {
                self.now += ms(milliseconds);
                self.group.handle_timeout(self.now);
            }
        }
    }

    /// The first epoch after that in which a server was the primary.
    fn rank_after(&self, rank: usize, server: u16) -> Option<usize> {
        (rank + 1..self.primaries.len()).find(|epoch| self.primaries[*epoch] == server)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..Default::default() })]

    /// Nobody is switched to who never was the primary, nor back to a server that was superseded by the
    /// one before; and when all Sentinels know how things are, so does the group.
    #[test]
    fn no_switch_leads_back(steps in prop::collection::vec(step(), 0..150), liar in prop::option::of(0..3usize)) {
        let mut world = World::new(liar);
        let mut rank = 0;
        for step in &steps {
            world.take(step);
            for to in switches(&mut world.group) {
                if to == world.aimed {
                    continue; // It is asked for again.
                }
                let next = world.rank_after(rank, to);
                prop_assert!(next.is_some(), "from {} to {to}: {:?}", world.aimed, world.primaries);
                rank = next.expect("it is");
                world.aimed = to;
            }
            prop_assert_eq!(world.group.primary(), Some(&at(world.aimed)));
        }
        // Two Sentinels that do not lie, and servers that have learnt what they are.
        for _ in 0..12 {
            for sentinel in 0..3 {
                world.take(&Step::Learn { sentinel });
                world.take(&Step::Say { sentinel });
            }
            for server in 1..=SERVERS {
                world.take(&Step::Demote { server });
                world.take(&Step::Report { server });
            }
            world.take(&Step::Effect);
            world.take(&Step::Wait { milliseconds: 500 });
        }
        prop_assert_eq!(world.group.primary(), Some(&at(world.current())));
        prop_assert_eq!(world.group.state(), State::Stable);
    }

    /// Without Sentinels nothing changes, whatever servers say.
    #[test]
    fn servers_alone_change_nothing(steps in prop::collection::vec(step(), 0..150)) {
        let mut world = World::new(None);
        for step in steps.iter().filter(|step| !matches!(step, Step::Say { .. } | Step::Nominate)) {
            world.take(step);
            prop_assert_eq!(switches(&mut world.group), Vec::<u16>::new());
        }
        prop_assert_eq!(world.group.primary(), Some(&at(1)));
    }
}
