//! What each kind of node makes of what its children say, as the table in docs/routes.md has it.

use cashew_config::snapshot::{FailoverOn, Route};

use super::*;
use crate::base::id::{BackendId, RequestId};
use crate::base::outcome::Execution;
use crate::route::answer::{Change, Kind, Repeats, Text, Word};
use crate::topology::route_tree::{Operation, Tree};

/// What came of a request.
#[derive(Debug, PartialEq, Eq)]
struct Played {
    /// The child whose answer is the client's, or the gateway's word.
    answer: Result<usize, Word>,
    /// Who was asked, in that order, and how.
    asked: Vec<(usize, Change)>,
    fills: Option<usize>,
}

/// A child's answer, by its kind and what it says.
#[derive(Clone, Copy, Debug)]
struct Says(Kind, u64);

const HIT: Says = Says(Kind::Hit, 1);
const OTHER: Says = Says(Kind::Hit, 2);
const MISS: Says = Says(Kind::Miss, 0);
const DEAD: Says = Says(Kind::Failed(Execution::No), 0);
const SLOW: Says = Says(Kind::Failed(Execution::Unknown), 0);
const LOADING: Says = Says(Kind::Refused, 0);
const WRONG: Says = Says(Kind::Error, 0);

/// Children answer in the order in which they are asked.
fn play(route: Route, ask: &Ask, says: &[Says]) -> Played {
    let number = |pool: &str| (BackendId::new(pool.parse().unwrap()), None);
    let tree = Tree::new(&route, &number);
    let node = tree.node(tree.root());
    let (mut all, mut asked) = (vec![None; node.width()], vec![false; node.width()]);
    let mut played = Played { answer: Err(Word::NoRoute), asked: Vec::new(), fills: None };
    let mut waiting = Vec::new();
    let mut verdict = begin(node, ask, Time::ZERO);
    loop {
        match verdict {
            Verdict::Wait => {}
            Verdict::Ask(ref children) | Verdict::SayAndAsk(_, ref children) => {
                for &(child, change) in children {
                    asked[child] = true;
                    played.asked.push((child, change));
                    waiting.push(child);
                }
                if let Verdict::SayAndAsk(word, _) = verdict {
                    played.answer = Err(word);
                    return played;
                }
            }
            Verdict::Answer(child) => {
                played.answer = Ok(child);
                return played;
            }
            Verdict::AnswerAndFill(child, cold) => {
                (played.answer, played.fills) = (Ok(child), Some(cold));
                return played;
            }
            Verdict::AnswerAndCopy(child, _) => {
                played.answer = Ok(child);
                return played;
            }
            Verdict::Keep(_) => unreachable!("only pools with a spool keep anything"),
            Verdict::Say(word) => {
                played.answer = Err(word);
                return played;
            }
        }
        let child = waiting.remove(0);
        let Says(kind, digest) = says[child];
        all[child] = Some(Answer { kind, digest, text: Text::Reply(RequestId::NONE) });
        verdict = judge(node, ask, &Answers { all: &all, asked: &asked, last: child });
    }
}

fn pools(count: u32) -> Vec<Route> {
    (0..count).map(|number| Route::Pool(number.to_string())).collect()
}

fn failover(ttl_ms: Option<u64>) -> Route {
    Route::Failover { to: pools(2), on: FailoverOn::default(), ttl_ms }
}

fn two(make: impl FnOnce(Box<Route>, Box<Route>) -> Route) -> Route {
    let [one, other] = [0, 1].map(|number: u32| Box::new(Route::Pool(number.to_string())));
    make(one, other)
}

fn warm_up() -> Route {
    two(|cold, warm| Route::WarmUp { cold, warm, ttl_ms: None })
}

fn shadow() -> Route {
    two(|to, shadow| Route::Shadow { to, shadow, share: 10_000, compare: true, outstanding_max: 9 })
}

fn migrate(share: u32) -> Route {
    two(|from, to| Route::Migrate {
        from,
        to,
        share,
        dual_write: true,
        read_other: true,
        follow: None,
    })
}

fn split() -> Route {
    Route::KeySplit { to: Box::new(Route::Pool("0".to_owned())), copies: 2 }
}

const READ: Ask = Ask {
    operation: Operation::Read,
    repeats: Repeats::Freely,
    share: 5000,
    random: 1,
    has_word: true,
    overwrites: false,
    misses_change: false,
    removes: false,
    is_copy: false,
};
const SET: Ask = Ask { operation: Operation::Write, repeats: Repeats::Alike, ..READ };
const INCR: Ask = Ask { operation: Operation::Write, repeats: Repeats::Never, ..READ };

/// The words of the table: the number of the child whose answer is the client's.
fn told(played: &Played) -> String {
    match played.answer {
        Ok(child) => (child + 1).to_string(),
        Err(Word::NoMajority(..)) => "error: no majority".to_owned(),
        Err(Word::Unknown) => "at once".to_owned(),
        Err(word) => format!("{word:?}"),
    }
}

fn asked(played: &Played) -> String {
    let of = |&(child, change): &(usize, Change)| match change {
        Change::None | Change::Copy(_) => (child + 1).to_string(),
        Change::Ttl(_) => format!("{} with the `ttl`", child + 1),
        Change::Delete | Change::DeleteCopy(_) => format!("{} (removal)", child + 1),
    };
    played.asked.iter().map(of).collect::<Vec<_>>().join(", ")
}

#[test]
fn docs_have_what_nodes_make_of_answers() {
    let all = |make: fn(Vec<Route>) -> Route| move || make(pools(2));
    type Make = Box<dyn Fn() -> Route>;
    let rows: [(&str, Make); 11] = [
        ("all_sync", Box::new(all(Route::AllSync))),
        ("all_async", Box::new(all(Route::AllAsync))),
        ("all_majority", Box::new(all(Route::AllMajority))),
        ("all_fastest", Box::new(|| Route::AllFastest { to: pools(2), miss_last: false })),
        (
            "all_fastest, `miss: last`",
            Box::new(|| Route::AllFastest { to: pools(2), miss_last: true }),
        ),
        ("all_initial", Box::new(all(Route::AllInitial))),
        ("failover", Box::new(|| failover(Some(60_000)))),
        ("miss_failover", Box::new(all(Route::MissFailover))),
        ("warm_up", Box::new(warm_up)),
        ("shadow", Box::new(shadow)),
        ("migrate", Box::new(|| migrate(0))),
    ];
    let straight = |route: &Route, ask: &Ask| {
        let tree = Tree::new(route, &|pool: &str| (BackendId::new(pool.parse().unwrap()), None));
        matches!(tree.way(b"k", ask.operation), crate::topology::route_tree::Way::Straight(_))
    };
    let mut table = String::from(
        "| node | read: hit, hit | miss, hit | down, hit | slow, hit | error, hit | all down | write: who gets it | \
         down, done | slow, done | write that may run only once: who gets it |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for (name, make) in rows {
        let cell = |ask: &Ask, says: [Says; 2], tell: fn(&Played) -> String| {
            let route = make();
            match straight(&route, ask) {
                true => "1".to_owned(),
                false => tell(&play(route, ask, &says)),
            }
        };
        let read = |says| cell(&READ, says, told);
        let cells = [
            read([HIT, OTHER]),
            read([MISS, HIT]),
            read([DEAD, HIT]),
            read([SLOW, HIT]),
            read([WRONG, HIT]),
            read([DEAD, DEAD]),
            cell(&SET, [HIT, HIT], asked),
            cell(&SET, [DEAD, HIT], told),
            cell(&SET, [SLOW, HIT], told),
            cell(&INCR, [HIT, HIT], asked),
        ];
        table += &format!(
            "| `{}` | {} |\n",
            name.replace(", `", "`, `").trim_end_matches('`'),
            cells.join(" | ")
        );
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/routes.md");
    let docs = std::fs::read_to_string(path).unwrap();
    const START: &str = "<!-- The table is written by the tests: CASHEW_BLESS=1 cargo test -p cashew-engine docs_have -->\n";
    const END: &str = "<!-- end of the table -->";
    let (before, rest) = docs.split_once(START).expect("docs/routes.md has a place for the table");
    let (found, after) = rest.split_once(END).expect("the table has an end");
    if std::env::var_os("CASHEW_BLESS").is_some() {
        std::fs::write(path, [before, START, &table, END, after].concat()).unwrap();
        return;
    }
    assert_eq!(found, table, "CASHEW_BLESS=1 writes it anew");
}

#[test]
fn failover_repeats_only_what_may_run_twice() {
    let answer = |ask: &Ask, says: [Says; 2]| play(failover(None), ask, &says).answer;
    for ask in [READ, SET, INCR] {
        assert_eq!(answer(&ask, [HIT, OTHER]), Ok(0));
        assert_eq!(answer(&ask, [MISS, HIT]), Ok(0));
        assert_eq!(answer(&ask, [WRONG, HIT]), Ok(0), "another server would say the same");
        assert_eq!(answer(&ask, [DEAD, HIT]), Ok(1));
        assert_eq!(answer(&ask, [LOADING, HIT]), Ok(1));
    }
    assert_eq!(answer(&READ, [SLOW, HIT]), Ok(1));
    assert_eq!(answer(&SET, [SLOW, HIT]), Ok(1));
    assert_eq!(answer(&INCR, [SLOW, HIT]), Ok(0));
    let played = play(failover(Some(5)), &SET, &[DEAD, HIT]);
    assert_eq!(played.asked, [(0, Change::None), (1, Change::Ttl(5))]);
}

#[test]
fn a_majority_is_more_than_half_and_of_one_mind() {
    let answer = |ask: &Ask, says: [Says; 3]| play(Route::AllMajority(pools(3)), ask, &says).answer;
    assert_eq!(answer(&READ, [HIT, OTHER, HIT]), Ok(0));
    assert_eq!(answer(&READ, [OTHER, HIT, HIT]), Ok(1));
    assert_eq!(answer(&READ, [DEAD, MISS, MISS]), Ok(1));
    assert_eq!(answer(&READ, [HIT, OTHER, MISS]), Err(Word::NoMajority(2, 1, 0)));
    assert_eq!(answer(&SET, [HIT, OTHER, MISS]), Ok(0), "what is written comes out the same");
    assert_eq!(answer(&READ, [DEAD, DEAD, HIT]), Ok(0), "most could not say");
    assert_eq!(answer(&INCR, [HIT, MISS, MISS]), Ok(0));
}

#[test]
fn what_a_warm_pool_has_is_copied_only_where_it_is_missing() {
    let played = |says: [Says; 2]| play(warm_up(), &READ, &says);
    assert_eq!(played([HIT, HIT]).asked.len(), 1);
    assert_eq!((played([MISS, HIT]).answer, played([MISS, HIT]).fills), (Ok(1), Some(0)));
    assert_eq!((played([DEAD, HIT]).answer, played([DEAD, HIT]).fills), (Ok(1), None));
    assert_eq!((played([MISS, DEAD]).answer, played([MISS, MISS]).answer), (Ok(0), Ok(0)));
}

#[test]
fn keys_that_migrate_are_written_to_both_and_read_where_they_are() {
    for (share, current) in [(0, 0), (5000, 0), (5001, 1), (10_000, 1)] {
        let other = 1 - current;
        let mut says = [MISS; 2];
        says[other] = HIT;
        assert_eq!(play(migrate(share), &READ, &says).answer, Ok(other), "{share}");
        assert_eq!(play(migrate(share), &READ, &[MISS; 2]).answer, Ok(current));
        let set = play(migrate(share), &SET, &[HIT; 2]);
        assert_eq!(set.asked, [(current, Change::None), (other, Change::None)]);
        let incr = play(migrate(share), &INCR, &[HIT; 2]);
        assert_eq!(incr.asked, [(current, Change::None), (other, Change::Delete)]);
        says[other] = DEAD;
        says[current] = HIT;
        assert_eq!(play(migrate(share), &SET, &says).answer, Ok(current), "the other may be gone");
    }
}

#[test]
fn copies_of_a_key_are_read_one_at_a_time_and_all_written() {
    let read = |says: [Says; 2]| play(split(), &READ, &says);
    assert_eq!(read([HIT, HIT]).asked, [(1, Change::Copy(1))]);
    assert_eq!((read([HIT, MISS]).answer, read([MISS, MISS]).answer), (Ok(0), Ok(0)));
    let set = play(split(), &SET, &[HIT, DEAD]);
    assert_eq!((set.answer, set.asked.len()), (Ok(0), 2));
    let incr = play(split(), &INCR, &[HIT, HIT]);
    assert_eq!(incr.asked, [(0, Change::None), (1, Change::DeleteCopy(1))]);
}
