//! Where the primary of one group is, by what Sentinels and servers say.
//!
//! A pure state machine: what was heard and the time go in, [`Output`] comes out of
//! [`Group::poll_output`]. Three kinds of evidence are told apart:
//!
//! - *E1*: a majority of the Sentinels, those that are dead counted, name one address, with a
//!   configuration epoch above that of the primary so far. It suffices.
//! - *E2*: a Sentinel has named a replica that it promotes, the server says that it is a primary, and its
//!   history goes on from that of the primary so far. It suffices, and is to be confirmed by E1.
//! - *E3*: a server says that it is a primary. It never suffices: one that was superseded says so for
//!   seconds after it has come back.
//!
//! What was decided is not taken back for what was known before: only where the server that was
//! chosen is a replica by its own word, or is silent, and a majority names another one for a while.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use cashew_config::snapshot::{Address, Lineage};

/// What a Sentinel has said longer ago is not its view any more.
const VIEW_MAX_AGE: Duration = Duration::from_secs(3);
/// What a server has said longer ago is nothing that it is now.
const REPORT_MAX_AGE: Duration = Duration::from_millis(2500);
/// How long a Sentinel's word that it promotes a replica is good for.
const NOMINATION_MAX_AGE: Duration = Duration::from_secs(60);
/// How long a group is suspect at least, after the last reason to suspect it.
const SUSPECT_MIN: Duration = Duration::from_secs(3);
/// What a promotion is to be confirmed by the Sentinels in.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(3);
/// A switch that has not come into effect is asked for again.
const SWITCH_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a majority must go on naming a former primary, while the one after it is a replica. Longer
/// than views are good for, so that all have been told anew meanwhile.
const DEMOTED_FOR: Duration = Duration::from_secs(4);
/// The same while the one after it is silent.
const SILENT_FOR: Duration = Duration::from_secs(10);
/// Servers of one group that are asked. Who names more is not believed.
pub(crate) const SERVERS_MAX: usize = 32;
const NOMINEES_MAX: usize = 8;

/// What a Sentinel says of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub primary: Address,
    pub config_epoch: u64,
    pub replicas: Vec<Address>,
}

/// What a server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    Primary {
        replid: String,
        /// That of the primary whose replica it was until the offset behind it.
        former: Option<(String, u64)>,
    },
    Replica {
        replid: String,
        offset: u64,
    },
    /// It answers, and not that.
    Other,
}

/// What a Sentinel tells of unasked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It promotes this replica, or has.
    Nominated(Address),
    /// Anything else about the group that tells of a failure.
    Trouble(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The primary is there now.
    Switch {
        to: Address,
        config_epoch: Option<u64>,
        why: String,
    },
    Changed {
        from: State,
        to: State,
        why: String,
    },
    /// Sentinels have not confirmed a promotion in time.
    Unconfirmed {
        primary: Address,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nobody has said where the primary is.
    Unknown,
    Stable,
    Suspect,
    /// It is known where the primary is, and not in effect yet.
    Switching,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Stable => "stable",
            Self::Suspect => "suspect",
            Self::Switching => "switching",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Debug)]
pub struct Group {
    /// By Sentinel.
    views: Vec<Option<(View, Instant)>>,
    /// Where the primary is, as far as is known here.
    primary: Option<Address>,
    /// Where those who serve take it to be.
    in_effect: Option<Address>,
    config_epoch: Option<u64>,
    /// The history that the primary's is, by its own word: a replica may follow another one.
    replid: Option<String>,
    nominees: BTreeMap<Address, Instant>,
    servers: BTreeMap<Address, Server>,
    state: State,
    suspect_until: Option<Instant>,
    /// A promotion that was followed and that no majority has confirmed.
    promotion: Option<Promotion>,
    /// What was said last of where the primary is, and when.
    asked: Option<(Address, Instant)>,
    contrary: Option<Contrary>,
    outputs: VecDeque<Output>,
}

#[derive(Clone, Debug, Default)]
struct Server {
    report: Option<(Report, Instant)>,
    /// It has closed its connection or does not answer, and has not said anything since.
    is_lost: bool,
    /// The last it said as a replica: of which history, and how far it had come.
    followed: Option<(String, u64)>,
}

#[derive(Clone, Debug)]
struct Promotion {
    since: Instant,
    /// Who was the primary before this one, and before those that were not confirmed either. A majority
    /// that names one of them has not heard of the promotion yet, whatever its epoch is, since that of
    /// the promotion is not known.
    former: BTreeSet<Address>,
    is_told: bool,
}

/// A majority goes on naming a server that was the primary before this one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Contrary {
    address: Address,
    is_demoted: bool,
    since: Instant,
}

impl Group {
    /// Watched by so many Sentinels, with a primary that is in effect already, if any is, and what was
    /// known of it before.
    pub fn new(
        sentinels: usize,
        primary: Option<Address>,
        config_epoch: Option<u64>,
        lineage: &Lineage,
        now: Instant,
    ) -> Self {
        let mut group = Self::unknown(sentinels, primary.clone(), config_epoch);
        if primary.is_some() {
            group.succeed(lineage, now);
        }
        group
    }

    /// The same group by the word of other Sentinels, or by another name.
    pub fn watched_by(&self, sentinels: usize) -> Self {
        Self { views: vec![None; sentinels], asked: None, ..self.clone() }
    }

    fn succeed(&mut self, lineage: &Lineage, now: Instant) {
        let Lineage { superseded, replid, followers } = lineage;
        self.replid = replid.clone();
        for (address, offset) in replid.iter().flat_map(|_| followers).take(SERVERS_MAX) {
            let server = self.servers.entry(address.clone()).or_default();
            server.followed = replid.clone().map(|replid| (replid, *offset));
        }
        let former: BTreeSet<_> = superseded.iter().take(SERVERS_MAX).cloned().collect();
        self.promotion =
            (!former.is_empty()).then_some(Promotion { since: now, former, is_told: false });
    }

    /// What the primary succeeds to.
    pub fn lineage(&self) -> Lineage {
        let superseded = self.promotion.iter().flat_map(|it| it.former.iter().cloned()).collect();
        let follower = |(address, server): (&Address, &Server)| {
            let (followed, offset) = server.followed.as_ref()?;
            (Some(followed) == self.replid.as_ref()).then(|| (address.clone(), *offset))
        };
        let followers = self.servers.iter().filter_map(follower).take(SERVERS_MAX).collect();
        Lineage { superseded, replid: self.replid.clone(), followers }
    }

    fn unknown(sentinels: usize, primary: Option<Address>, config_epoch: Option<u64>) -> Self {
        let state = if primary.is_some() { State::Stable } else { State::Unknown };
        Self {
            views: vec![None; sentinels],
            in_effect: primary.clone(),
            primary,
            config_epoch,
            replid: None,
            nominees: BTreeMap::new(),
            servers: BTreeMap::new(),
            state,
            suspect_until: None,
            promotion: None,
            asked: None,
            contrary: None,
            outputs: VecDeque::new(),
        }
    }

    pub fn state(&self) -> State {
        self.state
    }

    pub fn primary(&self) -> Option<&Address> {
        self.primary.as_ref()
    }

    pub fn config_epoch(&self) -> Option<u64> {
        self.config_epoch
    }

    /// Whether everything is to be asked often.
    pub fn is_urgent(&self) -> bool {
        self.state != State::Stable || self.promotion.is_some()
    }

    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The servers whose reports count.
    pub fn servers(&self) -> BTreeSet<Address> {
        let own = self.primary.iter().chain(&self.in_effect).chain(self.nominees.keys());
        let views = || self.views.iter().flatten().map(|(view, _)| view);
        let named = views().map(|view| &view.primary);
        let replicas = views().flat_map(|view| &view.replicas);
        let mut servers = BTreeSet::new();
        for server in own.chain(named).chain(replicas) {
            if servers.len() == SERVERS_MAX {
                break;
            }
            servers.insert(server.clone());
        }
        servers
    }

    /// Those who serve go by this primary now. The rest is what is known of it. If that is newer than
    /// what is known here it is by the word of the one who watched before.
    pub fn put_into_effect(
        &mut self,
        primary: Option<Address>,
        config_epoch: Option<u64>,
        lineage: &Lineage,
        now: Instant,
    ) {
        let is_superseded = |own: &Address| lineage.superseded.contains(own);
        let is_newer =
            self.primary.as_ref().is_none_or(is_superseded) || config_epoch > self.config_epoch;
        if primary.is_some() && primary != self.primary && is_newer {
            (self.primary, self.config_epoch) = (primary.clone(), config_epoch);
            (self.asked, self.contrary) = (None, None);
            self.succeed(lineage, now);
        }
        self.in_effect = primary;
        self.decide(now);
    }

    /// A Sentinel has answered. `None` is that it does not know the group.
    pub fn sentinel_says(&mut self, sentinel: usize, view: Option<View>, now: Instant) {
        let before = self.views[sentinel].take().map(|(view, _)| view.primary);
        let named = view.as_ref().map(|view| &view.primary);
        let is_news = named != before.as_ref() && before.is_some();
        if let Some(view) = view {
            if Some(view.config_epoch) > self.config_epoch && self.config_epoch.is_some() {
                self.nominate(view.primary.clone(), now);
            }
            if is_news && Some(&view.primary) != self.primary.as_ref() {
                self.suspect(&format!("a Sentinel names {} now", view.primary), now);
            }
            self.views[sentinel] = Some((view, now));
        }
        self.decide(now);
    }

    /// A Sentinel has told of something.
    pub fn sentinel_tells(&mut self, event: Event, now: Instant) {
        match event {
            Event::Nominated(address) => {
                if Some(&address) != self.primary.as_ref() {
                    self.suspect(&format!("a Sentinel promotes {address}"), now);
                }
                self.nominate(address, now);
            }
            Event::Trouble(what) => self.suspect(&format!("a Sentinel says {what}"), now),
        }
        self.decide(now);
    }

    /// A server has said what it is.
    pub fn server_says(&mut self, address: &Address, report: Report, now: Instant) {
        let is_primary = self.primary.as_ref() == Some(address);
        if is_primary {
            match &report {
                Report::Primary { replid, .. } => self.replid = Some(replid.clone()),
                Report::Replica { .. } => {
                    self.suspect(&format!("{address} says that it is a replica"), now);
                }
                Report::Other => {}
            }
        }
        let server = self.servers.entry(address.clone()).or_default();
        if let Report::Replica { replid, offset } = &report {
            server.followed = Some((replid.clone(), *offset));
        }
        server.report = Some((report, now));
        server.is_lost = false;
        self.decide(now);
    }

    /// A worker's writes are refused by the primary that is in effect.
    pub fn refuses_writes(&mut self, now: Instant) {
        if self.in_effect == self.primary {
            let why = "the primary refuses writes as a replica does";
            self.suspect(why, now);
        }
        self.decide(now);
    }

    /// A server has closed its connection, refuses one, or does not answer.
    pub fn server_lost(&mut self, address: &Address, why: &str, now: Instant) {
        let server = self.servers.entry(address.clone()).or_default();
        let is_news = !server.is_lost;
        server.is_lost = true;
        let is_primary = self.primary.as_ref() == Some(address);
        if is_primary || is_news {
            // A replica that is promoted closes the connections of its clients.
            self.suspect(&format!("{address} {why}"), now);
        }
        self.decide(now);
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.decide(now);
    }

    fn nominate(&mut self, address: Address, now: Instant) {
        if Some(&address) == self.primary.as_ref() {
            return;
        }
        self.nominees.insert(address, now);
        while self.nominees.len() > NOMINEES_MAX {
            let oldest = self.nominees.iter().min_by_key(|(_, at)| **at);
            let Some(oldest) = oldest.map(|(address, _)| address.clone()) else { return };
            self.nominees.remove(&oldest);
        }
    }

    fn suspect(&mut self, why: &str, now: Instant) {
        self.suspect_until = Some(now + SUSPECT_MIN);
        if self.state == State::Stable {
            self.enter(State::Suspect, why);
        }
    }

    fn enter(&mut self, to: State, why: &str) {
        let from = std::mem::replace(&mut self.state, to);
        if from != to {
            self.outputs.push_back(Output::Changed { from, to, why: why.to_owned() });
        }
    }

    fn decide(&mut self, now: Instant) {
        self.forget(now);
        let majority = self.majority(now);
        match &majority {
            Some((address, epoch)) if self.primary.as_ref() == Some(address) => {
                // Of a promotion that is by a new epoch; it may have been the primary before, too.
                if self.config_epoch < Some(*epoch) {
                    self.config_epoch = Some(*epoch);
                    self.promotion = None;
                }
            }
            Some((address, epoch))
                if (self.primary.is_none() || Some(*epoch) > self.config_epoch)
                    && !self.is_superseded(address) =>
            {
                let why = format!(
                    "{} of {} Sentinels name {address}, configuration epoch {epoch}",
                    self.naming(address),
                    self.views.len()
                );
                self.switch(address.clone(), Some(*epoch), why, now);
            }
            Some(_) | None => {}
        }
        if let Some((address, why)) = self.promoted(now) {
            let mut former = self.promotion.take().map(|it| it.former).unwrap_or_default();
            former.extend(self.primary.clone());
            former.remove(&address);
            while former.len() > SERVERS_MAX {
                former.pop_first();
            }
            self.switch(address, None, why, now);
            self.promotion = Some(Promotion { since: now, former, is_told: false });
        }
        if let Some((address, epoch)) = majority {
            self.heed_contrary(address, epoch, now);
        } else {
            self.contrary = None;
        }
        if let (Some(promotion), Some(primary)) = (&mut self.promotion, &self.primary)
            && now >= promotion.since + CONFIRM_TIMEOUT
            && !std::mem::replace(&mut promotion.is_told, true)
        {
            self.outputs.push_back(Output::Unconfirmed { primary: primary.clone() });
        }
        self.settle(now);
    }

    fn is_superseded(&self, address: &Address) -> bool {
        self.promotion.as_ref().is_some_and(|it| it.former.contains(address))
    }

    fn forget(&mut self, now: Instant) {
        self.nominees.retain(|_, at| now.saturating_duration_since(*at) < NOMINATION_MAX_AGE);
        let servers = self.servers();
        // Nobody has said yet who there is, where another one watched before.
        let is_awaited = self.views.iter().all(Option::is_none);
        self.servers.retain(|address, _| is_awaited || servers.contains(address));
    }

    fn fresh_views(&self, now: Instant) -> impl Iterator<Item = &View> {
        let is_fresh = move |at: Instant| now.saturating_duration_since(at) < VIEW_MAX_AGE;
        self.views.iter().flatten().filter(move |(_, at)| is_fresh(*at)).map(|(view, _)| view)
    }

    fn naming(&self, address: &Address) -> usize {
        self.views.iter().flatten().filter(|(view, _)| view.primary == *address).count()
    }

    /// The address that more than half of all Sentinels name, and the epoch that as many of them have
    /// reached.
    fn majority(&self, now: Instant) -> Option<(Address, u64)> {
        let needed = self.views.len() / 2 + 1;
        let mut epochs: BTreeMap<&Address, Vec<u64>> = BTreeMap::new();
        for view in self.fresh_views(now) {
            epochs.entry(&view.primary).or_default().push(view.config_epoch);
        }
        let (address, mut epochs) = epochs.into_iter().find(|(_, it)| it.len() >= needed)?;
        epochs.sort_unstable_by(|a, b| b.cmp(a));
        Some((address.clone(), epochs[needed - 1]))
    }

    /// What a server is now, if it has said so lately and is not lost since.
    fn report(&self, address: &Address, now: Instant) -> Option<&Report> {
        let server = self.servers.get(address).filter(|server| !server.is_lost)?;
        let (report, at) = server.report.as_ref()?;
        (now.saturating_duration_since(*at) < REPORT_MAX_AGE).then_some(report)
    }

    /// A replica that a Sentinel promotes, that says it is a primary, and whose history goes on from
    /// the primary's.
    fn promoted(&self, now: Instant) -> Option<(Address, String)> {
        let former_primary = self.primary.as_ref()?;
        let history = self.replid.as_ref()?;
        let goes_on = |address: &&Address| {
            let Some(Report::Primary { former: Some((replid, end)), .. }) =
                self.report(address, now)
            else {
                return false;
            };
            // One that starts with an old copy of the data claims the history, too: it must have been
            // seen to follow it, as far as where it branches off.
            let followed = self.servers.get(*address).and_then(|server| server.followed.as_ref());
            let is_follower =
                followed.is_some_and(|(followed, come)| followed == history && end >= come);
            replid == history && is_follower
        };
        let mut nominees = self.nominees.keys().filter(|nominee| *nominee != former_primary);
        let address = nominees.find(goes_on)?;
        let why = format!(
            "a Sentinel promotes {address}, which says that it is a master, with the history of \
             {former_primary}"
        );
        Some((address.clone(), why))
    }

    /// A majority that names another server than the primary, without a new epoch.
    fn heed_contrary(&mut self, address: Address, epoch: u64, now: Instant) {
        let Some(primary) = self.primary.clone().filter(|primary| *primary != address) else {
            self.contrary = None;
            return;
        };
        let is_primary =
            |it: &Address| matches!(self.report(it, now), Some(Report::Primary { .. }));
        let is_demoted = matches!(self.report(&primary, now), Some(Report::Replica { .. }));
        let is_silent = self.report(&primary, now).is_none()
            && self.fresh_views(now).all(|view| view.primary == address);
        if !is_primary(&address) || !(is_demoted || is_silent) {
            self.contrary = None;
            return;
        }
        let is_same = |it: &&Contrary| it.address == address && it.is_demoted == is_demoted;
        let since = self.contrary.as_ref().filter(is_same).map_or(now, |it| it.since);
        let limit = if is_demoted { DEMOTED_FOR } else { SILENT_FOR };
        if now >= since + limit {
            let what = if is_demoted { "is a replica" } else { "does not answer" };
            let why = format!(
                "{} of {} Sentinels go on naming {address}, and {primary} {what}",
                self.naming(&address),
                self.views.len()
            );
            // Theirs, though it is lower: they have been set up anew.
            self.config_epoch = None;
            return self.switch(address, Some(epoch), why, now);
        }
        self.contrary = Some(Contrary { address, is_demoted, since });
    }

    fn switch(&mut self, to: Address, config_epoch: Option<u64>, why: String, now: Instant) {
        self.config_epoch = self.config_epoch.max(config_epoch);
        self.replid = match self.report(&to, now) {
            Some(Report::Primary { replid, .. }) => Some(replid.clone()),
            Some(Report::Replica { .. } | Report::Other) | None => None,
        };
        self.primary = Some(to.clone());
        self.nominees.clear();
        self.contrary = None;
        self.promotion = None;
        let asked = self.asked.replace((to.clone(), now)).map(|(address, _)| address);
        if self.in_effect.as_ref() == Some(&to) && asked.is_none_or(|asked| asked == to) {
            return;
        }
        self.enter(State::Switching, &why);
        self.outputs.push_back(Output::Switch { to, config_epoch, why });
    }

    /// Takes the state that follows from what is known.
    fn settle(&mut self, now: Instant) {
        let Some(primary) = self.primary.clone() else { return };
        if self.in_effect.as_ref() != Some(&primary) {
            if self.asked.as_ref().is_none_or(|(_, at)| now >= *at + SWITCH_TIMEOUT) {
                self.asked = Some((primary.clone(), now));
                let why = "it is not in effect yet".to_owned();
                let config_epoch = self.config_epoch;
                self.outputs.push_back(Output::Switch { to: primary, config_epoch, why });
            }
            return self.enter(State::Switching, "it is not in effect yet");
        }
        match self.state {
            State::Switching | State::Unknown => {
                self.enter(State::Stable, &format!("{primary} is in effect"));
            }
            State::Suspect => {
                let is_over = self.suspect_until.is_none_or(|until| now >= until);
                let is_well = matches!(
                    self.report(&primary, now),
                    Some(Report::Primary { .. } | Report::Other)
                );
                if is_over && is_well {
                    self.enter(State::Stable, &format!("{primary} is well"));
                }
            }
            State::Stable => {}
        }
    }
}

#[cfg(test)]
#[path = "group_tests.rs"]
mod tests;
