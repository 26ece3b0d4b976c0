//! How far the servers of one group have come, by what they say: who may answer reads.
//!
//! Pure: polls and reports go in, what there is to publish comes out of [`Replication::standing`].

use std::collections::{BTreeMap, VecDeque};

use cashew_config::snapshot::ReplicaReads;
use cashew_metrics::{Fitness, MemberRole, MemberState};

/// Positions of the primary that are kept: at the fastest pace those of fifty seconds in which it
/// never stands still.
const POINTS_MAX: usize = 1024;

/// What a server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberReport {
    pub is_replica: bool,
    /// Which history its data is of.
    pub replid: String,
    /// How far it has come there.
    pub offset: u64,
    /// Of a primary: that of the one whose replica it was until the offset behind it.
    pub former: Option<(String, u64)>,
    pub link: Link,
    pub is_syncing: bool,
    pub is_loading: bool,
}

/// A replica's connection to its primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Up,
    /// For so many seconds.
    Down(u64),
    /// There has been none since it started.
    Never,
}

/// A position of the primary.
#[derive(Clone, Copy, Debug)]
struct Point {
    /// The newest poll at which it was there.
    poll: u64,
    offset: u64,
}

#[derive(Debug, Default)]
struct Member {
    /// `None` is an answer that tells nothing.
    report: Option<MemberReport>,
    /// The last poll that it has answered.
    polled: u64,
    is_lost: bool,
    /// Sentinels say so.
    is_down: bool,
    /// How far it had come as a replica in [`Replication::history`], when it said so last.
    followed: Option<u64>,
}

/// Servers by their names.
#[derive(Debug)]
pub struct Replication {
    primary: String,
    members: BTreeMap<String, Member>,
    /// The primary's history, and positions in it, oldest first.
    replid: Option<String>,
    points: VecDeque<Point>,
    /// The history of which the primary was the primary by its own word, when it said so last.
    history: Option<String>,
    begun: u64,
    /// The poll before that.
    begun_before: u64,
}

impl Replication {
    pub fn new(primary: &str, replicas: impl Iterator<Item = String>) -> Self {
        let members = std::iter::once(primary.to_owned()).chain(replicas);
        Self {
            primary: primary.to_owned(),
            members: members.map(|name| (name, Member::default())).collect(),
            replid: None,
            points: VecDeque::new(),
            history: None,
            begun: 0,
            begun_before: 0,
        }
    }

    pub fn primary(&self) -> &str {
        &self.primary
    }

    pub fn members(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// Takes over what is known from the same servers as they were before a change.
    pub fn keep(&mut self, before: &mut Self) {
        for (name, member) in &mut self.members {
            if let Some(known) = before.members.remove(name) {
                *member = known;
            }
        }
        (self.begun, self.begun_before) = (before.begun, before.begun_before);
        if self.primary == before.primary {
            self.replid = before.replid.take();
            self.points = std::mem::take(&mut before.points);
            self.history = before.history.take();
        } else {
            let primary = self.members.get(&self.primary).and_then(|it| it.report.as_ref());
            let history = primary.filter(|it| !it.is_replica).map(|it| it.replid.clone());
            self.begin_history(history);
        }
    }

    /// The primary is that of this history from now on, as far as is known.
    fn begin_history(&mut self, history: Option<String>) {
        for member in self.members.values_mut() {
            let report = member.report.as_ref().filter(|it| it.is_replica);
            let is_of_it = |it: &&MemberReport| Some(&it.replid) == history.as_ref();
            member.followed = report.filter(is_of_it).map(|it| it.offset);
        }
        self.history = history;
    }

    /// Of a server at another address nothing is known.
    pub fn forget(&mut self, name: &str) {
        if let Some(member) = self.members.get_mut(name) {
            *member = Member::default();
        }
        if name == self.primary {
            self.replid = None;
            self.points.clear();
            self.history = None;
        }
    }

    /// A poll begins.
    pub fn begin(&mut self, poll: u64) {
        self.begun_before = std::mem::replace(&mut self.begun, poll);
    }

    /// A server has answered a poll; `None` if that tells nothing.
    pub fn says(&mut self, name: &str, poll: u64, report: Option<MemberReport>) {
        if let (true, Some(report)) = (name == self.primary, &report) {
            self.note_position(poll, report);
            if !report.is_replica && self.history.as_ref() != Some(&report.replid) {
                self.begin_history(Some(report.replid.clone()));
            }
        }
        let history = self.history.as_ref();
        let followed = report.as_ref().filter(|it| it.is_replica && Some(&it.replid) == history);
        let followed = followed.map(|it| it.offset);
        if let Some(member) = self.members.get_mut(name) {
            member.followed = followed.or(member.followed);
            (member.report, member.polled, member.is_lost) = (report, poll, false);
        }
    }

    /// Its connection has ended, could not be made, or stays without an answer.
    pub fn lost(&mut self, name: &str) {
        if let Some(member) = self.members.get_mut(name) {
            member.is_lost = true;
        }
    }

    /// Whether Sentinels take it to be down.
    pub fn set_down(&mut self, name: &str, is_down: bool) {
        if let Some(member) = self.members.get_mut(name) {
            member.is_down = is_down;
        }
    }

    fn note_position(&mut self, poll: u64, report: &MemberReport) {
        let MemberReport { replid, offset, .. } = report;
        let has_gone_back = self.points.back().is_some_and(|last| *offset < last.offset);
        if self.replid.as_ref() != Some(replid) || has_gone_back {
            self.points.clear();
            self.replid = Some(replid.clone());
        }
        match self.points.back_mut() {
            Some(last) if last.offset == *offset => last.poll = poll,
            _ => self.points.push_back(Point { poll, offset: *offset }),
        }
        if self.points.len() > POINTS_MAX {
            self.points.pop_front();
        }
    }

    /// What there is to publish of a server: its state, the last poll that it has answered, and the
    /// newest one at which the primary had no more than it has.
    /// `None` while nothing is known of it.
    pub fn standing(&self, name: &str, rules: &ReplicaReads) -> Option<(MemberState, u64, u64)> {
        let member = self.members.get(name)?;
        let is_heard = member.polled > 0 || member.is_lost;
        let is_measurable = name == self.primary || member.is_lost || !self.awaits_primary();
        (is_heard && is_measurable).then(|| self.judge(name, member, rules))
    }

    /// Who has taken the primary's place, where the primary itself goes by it: it is connected as a replica,
    /// with the history of a member that is a primary, and that one's history goes on from where the former
    /// primary's was, as far as it had followed that. So nobody can write to the former one any more, and a
    /// server that comes back with old data, or with none, is nobody's successor. `None` as well where the
    /// primary has never said that it is one.
    pub fn successor(&self) -> Option<&str> {
        let history = self.history.as_ref()?;
        let is_current =
            |it: &Member| !it.is_lost && it.polled > 0 && it.polled >= self.begun_before;
        let former = self.members.get(&self.primary).filter(|it| is_current(it))?;
        let former = former.report.as_ref()?;
        if !former.is_replica || former.link != Link::Up || former.is_syncing {
            return None;
        }
        let succeeds = |name: &str, member: &Member| {
            let (Some(report), Some(followed)) = (&member.report, member.followed) else {
                return false;
            };
            let goes_on = |(replid, end): &(String, u64)| replid == history && *end >= followed;
            name != self.primary
                && is_current(member)
                && !report.is_replica
                && !report.is_loading
                && report.replid == former.replid
                && report.former.as_ref().is_some_and(goes_on)
        };
        let mut members = self.members.iter();
        members.find(|(name, member)| succeeds(name, member)).map(|(name, _)| name.as_str())
    }

    /// Whether the primary is still to say where it is: until then replicas cannot be measured.
    fn awaits_primary(&self) -> bool {
        let tells_nothing = |it: &Member| it.is_lost || (it.polled > 0 && it.report.is_none());
        self.replid.is_none() && !self.members.get(&self.primary).is_some_and(tells_nothing)
    }

    fn judge(&self, name: &str, member: &Member, rules: &ReplicaReads) -> (MemberState, u64, u64) {
        let Some(report) = &member.report else {
            let fitness = match (member.is_lost, member.is_down && name != self.primary) {
                (true, _) => Fitness::Unreachable,
                (false, true) => Fitness::SaidDown,
                (false, false) => Fitness::Unknown,
            };
            return (MemberState { fitness, ..MemberState::default() }, member.polled, 0);
        };
        let is_of_primary = self.replid.as_ref().map(|replid| *replid == report.replid);
        let mut state = MemberState {
            role: if report.is_replica { MemberRole::Replica } else { MemberRole::Primary },
            is_loading: report.is_loading,
            ..MemberState::default()
        };
        if report.is_replica {
            state.is_syncing = report.is_syncing;
            state.is_link_up = Some(report.link == Link::Up);
            state.link_down_secs = match report.link {
                Link::Down(secs) => Some(secs),
                Link::Up | Link::Never => None,
            };
        }
        if name == self.primary {
            state.fitness = match (member.is_lost, report.is_loading) {
                (true, _) => Fitness::Unreachable,
                (_, true) => Fitness::Loading,
                _ => Fitness::Fit,
            };
            return (state, member.polled, 0);
        }
        state.is_of_primary = is_of_primary;
        if report.is_replica && is_of_primary == Some(true) {
            state.lag = self.lag(member, report);
        }
        state.fitness = match fitness(member.is_lost, report, &state, rules) {
            Fitness::Fit if member.is_down => Fitness::SaidDown,
            fitness => fitness,
        };
        let covers = if is_of_primary == Some(true) { self.covers(report.offset) } else { 0 };
        (state, member.polled, covers)
    }

    /// Bytes behind the primary, by the poll that the replica has answered. Of one that is silent by
    /// the newest: it has come nowhere since, as far as is known.
    fn lag(&self, member: &Member, report: &MemberReport) -> Option<u64> {
        let is_current = member.polled >= self.begun_before;
        let by = |point: &&Point| !is_current || point.poll <= member.polled;
        let point = self.points.iter().rev().find(by).or(self.points.front())?;
        Some(point.offset.saturating_sub(report.offset))
    }

    /// The newest poll at which the primary was not further than this.
    fn covers(&self, offset: u64) -> u64 {
        let reached = self.points.iter().rev().find(|point| point.offset <= offset);
        reached.map_or(0, |point| point.poll)
    }
}

fn fitness(
    is_lost: bool,
    report: &MemberReport,
    state: &MemberState,
    rules: &ReplicaReads,
) -> Fitness {
    let link_down_max = rules.link_down_max_ms / 1000;
    match report.link {
        _ if is_lost => Fitness::Unreachable,
        _ if !report.is_replica => Fitness::NotReplica,
        _ if report.is_loading => Fitness::Loading,
        _ if report.is_syncing => Fitness::Syncing,
        Link::Never => Fitness::NeverSynced,
        Link::Down(secs) if secs >= link_down_max => Fitness::LinkDown,
        _ if state.is_of_primary == Some(false) => Fitness::OtherHistory,
        _ if rules.lag_max.is_some_and(|max| state.lag.is_some_and(|lag| lag > max)) => {
            Fitness::Lagging
        }
        _ => Fitness::Fit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: ReplicaReads = ReplicaReads {
        lag_max: Some(100),
        link_down_max_ms: 60_000,
        read_your_writes: cashew_config::snapshot::ReadYourWrites::Off,
    };

    fn group() -> Replication {
        Replication::new("p", ["r".to_owned(), "s".to_owned()].into_iter())
    }

    fn primary(offset: u64) -> Option<MemberReport> {
        Some(MemberReport { is_replica: false, link: Link::Never, ..replica(offset).unwrap() })
    }

    fn replica(offset: u64) -> Option<MemberReport> {
        Some(MemberReport {
            is_replica: true,
            replid: "one".to_owned(),
            offset,
            former: None,
            link: Link::Up,
            is_syncing: false,
            is_loading: false,
        })
    }

    /// The replica "r" is promoted at an offset, and the former primary "p" follows it.
    fn handed_over(end: u64) -> [(&'static str, MemberReport); 2] {
        let former = Some(("one".to_owned(), end));
        let replid = || "two".to_owned();
        [
            ("r", MemberReport { replid: replid(), former, ..primary(end).unwrap() }),
            ("p", MemberReport { replid: replid(), ..replica(end).unwrap() }),
        ]
    }

    fn before_it() -> Replication {
        let mut group = group();
        group.begin(1);
        group.says("p", 1, primary(10));
        group.says("r", 1, replica(10));
        group.begin(2);
        group
    }

    #[test]
    fn a_replica_that_sentinels_take_to_be_down_is_not_fit_and_a_primary_is() {
        let mut group = group();
        group.begin(1);
        group.says("p", 1, primary(10));
        group.says("r", 1, replica(10));
        let fitness = |group: &Replication, name| group.standing(name, &RULES).unwrap().0.fitness;
        ["p", "r"].iter().for_each(|name| group.set_down(name, true));
        assert_eq!((fitness(&group, "p"), fitness(&group, "r")), (Fitness::Fit, Fitness::SaidDown));
        group.set_down("r", false);
        assert_eq!(fitness(&group, "r"), Fitness::Fit);
    }

    #[test]
    fn a_primary_that_follows_another_member_has_handed_over_to_it() {
        let mut group = before_it();
        let [r, p] = handed_over(11);
        group.says(r.0, 2, Some(r.1));
        assert_eq!(group.successor(), None, "a server that says it is a primary is not enough");
        group.says(p.0, 2, Some(p.1));
        assert_eq!(group.successor(), Some("r"));
        // It is in effect.
        let mut next = Replication::new("r", ["p".to_owned(), "s".to_owned()].into_iter());
        next.keep(&mut group);
        assert_eq!(next.successor(), None);
    }

    #[test]
    fn nobody_succeeds_whose_history_does_not_go_on() {
        type Change = fn(&mut MemberReport, &mut MemberReport);
        let changes: [Change; 8] = [
            |r, _| r.former = None,
            |r, _| r.former = Some(("other".to_owned(), 11)),
            // It had come further than where it says that it branched off.
            |r, _| r.former = Some(("one".to_owned(), 9)),
            |r, _| r.replid = "three".to_owned(),
            |r, _| r.is_loading = true,
            |_, p| p.link = Link::Down(0),
            |_, p| p.is_syncing = true,
            |_, p| p.is_replica = false,
        ];
        for change in changes {
            let mut group = before_it();
            let [mut r, mut p] = handed_over(11);
            change(&mut r.1, &mut p.1);
            group.says(r.0, 2, Some(r.1));
            group.says(p.0, 2, Some(p.1));
            assert_eq!(group.successor(), None);
        }
    }

    #[test]
    fn old_words_and_servers_that_were_never_seen_to_follow_count_for_nothing() {
        let mut group = before_it();
        let [r, p] = handed_over(11);
        group.says(r.0, 2, Some(r.1.clone()));
        group.says(p.0, 2, Some(p.1.clone()));
        group.lost("r");
        assert_eq!(group.successor(), None);
        group.says(r.0, 2, Some(r.1.clone()));
        group.begin(3);
        group.begin(4);
        assert_eq!(group.successor(), None);
        // The primary has never said that it is one.
        let mut group = self::group();
        group.begin(1);
        group.says(r.0, 1, Some(r.1.clone()));
        group.says(p.0, 1, Some(p.1.clone()));
        assert_eq!(group.successor(), None);
        // The other was never its replica: it began with a copy of the file.
        let mut group = self::group();
        group.begin(1);
        group.says("p", 1, primary(10));
        group.says(r.0, 1, Some(r.1));
        group.says(p.0, 1, Some(p.1));
        assert_eq!(group.successor(), None);
    }

    fn fitness_of(group: &Replication, name: &str) -> Fitness {
        group.standing(name, &RULES).map_or(Fitness::Unknown, |it| it.0.fitness)
    }

    #[test]
    fn a_replica_is_fit_while_it_keeps_up() {
        let mut group = group();
        assert_eq!(fitness_of(&group, "r"), Fitness::Unknown);
        group.begin(1);
        group.says("r", 1, replica(50));
        // Where the primary is is not known yet.
        assert_eq!(group.standing("r", &RULES), None);
        group.lost("p");
        assert_eq!(fitness_of(&group, "r"), Fitness::Fit);
        group.says("p", 1, primary(150));
        assert_eq!(fitness_of(&group, "r"), Fitness::Fit);
        assert_eq!(group.standing("r", &RULES).unwrap().0.lag, Some(100));
        group.begin(2);
        group.says("p", 2, primary(151));
        // It may be about to answer.
        assert_eq!(group.standing("r", &RULES).unwrap().0.lag, Some(100));
        group.says("r", 2, replica(50));
        assert_eq!(fitness_of(&group, "r"), Fitness::Lagging);
        group.begin(3);
        group.says("p", 3, primary(160));
        group.says("r", 3, replica(160));
        assert_eq!(fitness_of(&group, "r"), Fitness::Fit);
        // It goes silent.
        for poll in 4..7 {
            group.begin(poll);
            group.says("p", poll, primary(400));
        }
        assert_eq!(fitness_of(&group, "r"), Fitness::Lagging);
        group.lost("r");
        assert_eq!(fitness_of(&group, "r"), Fitness::Unreachable);
        let (state, polled, _) = group.standing("p", &RULES).unwrap();
        assert_eq!((state.role, state.fitness, polled), (MemberRole::Primary, Fitness::Fit, 6));
    }

    #[test]
    fn a_link_may_be_down_for_a_while_but_must_have_been_up() {
        let mut group = group();
        group.begin(1);
        group.says("p", 1, primary(10));
        for (link, expected) in [
            (Link::Up, Fitness::Fit),
            (Link::Down(0), Fitness::Fit),
            (Link::Down(59), Fitness::Fit),
            (Link::Down(60), Fitness::LinkDown),
            (Link::Never, Fitness::NeverSynced),
        ] {
            group.says("r", 1, Some(MemberReport { link, ..replica(10).unwrap() }));
            assert_eq!(fitness_of(&group, "r"), expected, "{link:?}");
        }
        let never = ReplicaReads { link_down_max_ms: 0, ..RULES };
        group.says("r", 1, Some(MemberReport { link: Link::Down(0), ..replica(10).unwrap() }));
        assert_eq!(group.standing("r", &never).unwrap().0.fitness, Fitness::LinkDown);
    }

    #[test]
    fn what_a_server_says_of_itself_makes_it_unfit() {
        let mut group = group();
        group.begin(1);
        group.says("p", 1, primary(10));
        let cases = [
            (MemberReport { is_syncing: true, ..replica(10).unwrap() }, Fitness::Syncing),
            (MemberReport { is_loading: true, ..replica(10).unwrap() }, Fitness::Loading),
            (MemberReport { replid: "two".into(), ..replica(10).unwrap() }, Fitness::OtherHistory),
            (primary(10).unwrap(), Fitness::NotReplica),
        ];
        for (report, expected) in cases {
            group.says("r", 1, Some(report));
            assert_eq!(fitness_of(&group, "r"), expected);
        }
        // Who does not tell is taken as it always was.
        group.says("r", 1, None);
        assert_eq!(fitness_of(&group, "r"), Fitness::Unknown);
        assert_eq!(fitness_of(&group, "s"), Fitness::Unknown);
    }

    #[test]
    fn a_replica_covers_the_polls_that_it_has_caught_up_with() {
        let mut group = group();
        for (poll, offset) in [(1, 10), (2, 20), (3, 20), (4, 30)] {
            group.begin(poll);
            group.says("p", poll, primary(offset));
        }
        for (offset, covers) in [(9, 0), (10, 1), (19, 1), (20, 3), (29, 3), (30, 4), (99, 4)] {
            group.says("r", 4, replica(offset));
            assert_eq!(group.standing("r", &RULES).unwrap().2, covers, "{offset}");
        }
        // Of another history it has nothing.
        group.says("r", 4, Some(MemberReport { replid: "two".into(), ..replica(99).unwrap() }));
        assert_eq!(group.standing("r", &RULES).unwrap().2, 0);
        // The primary starts anew: what was there counts no more.
        group.says("r", 4, replica(99));
        group.begin(5);
        group.says("p", 5, Some(MemberReport { replid: "two".into(), ..primary(0).unwrap() }));
        assert_eq!(group.standing("r", &RULES).unwrap().2, 0);
        group.says("r", 5, Some(MemberReport { replid: "two".into(), ..replica(0).unwrap() }));
        assert_eq!(group.standing("r", &RULES).unwrap().2, 5);
    }

    #[test]
    fn another_primary_is_measured_by_anew() {
        let mut group = group();
        group.begin(1);
        group.says("p", 1, primary(10));
        group.says("r", 1, replica(10));
        let mut next = Replication::new("r", ["p".to_owned(), "s".to_owned()].into_iter());
        next.keep(&mut group);
        assert_eq!(next.standing("p", &RULES), None);
        next.begin(2);
        next.says("r", 2, primary(12));
        next.says("p", 2, replica(12));
        assert_eq!(next.standing("p", &RULES).unwrap().2, 2);
        next.forget("r");
        assert_eq!(next.standing("p", &RULES), None);
        next.lost("r");
        assert_eq!(next.standing("p", &RULES).unwrap().2, 0);
    }

    #[test]
    fn positions_are_bounded() {
        let mut group = group();
        for poll in 1..5000 {
            group.begin(poll);
            group.says("p", poll, primary(poll));
        }
        assert_eq!(group.points.len(), POINTS_MAX);
        group.says("r", 4999, replica(4000));
        assert_eq!(group.standing("r", &RULES).unwrap().2, 4000);
    }
}
