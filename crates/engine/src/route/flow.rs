//! Walks a route's tree for a request: asks leaves, has nodes judge the answers, and makes one reply.
//!
//! A request is one part for each of its keys. A part walks the tree by itself, as tasks: one for each node
//! that was asked, and one for each leaf. A leaf's task has an attempt, whose reply is its answer; it goes up to
//! the parent's task, whose node says what is next, up to the root.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cashew_config::snapshot::{Protocol, share_of};
use cashew_metrics::{Passage, PoolCounter};
use cashew_protocol::redis::Access;

use super::answer::{
    Answer, Ask, Change, Dialect, Fill, Kind, Question, Repeats, Seat, Side, Text, Verdict, Word,
};
use super::node::{self, Answers};
use crate::base::failure::{Failure, NamedFailure};
use crate::base::id::{BackendId, ClientId, ListenerId, RequestId};
use crate::downstream::client::{Client, Selected};
use crate::downstream::listener::Listener;
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::exchange::dispatch::Payload;
use crate::exchange::flow::{Flow, FlowContext, Step};
use crate::topology::route_tree::{Choice, Node, NodeId, Operation, Tree};
use crate::upstream::backend::Backend;

/// What is asked of a tree.
#[derive(Clone, Debug)]
pub(crate) struct Errand {
    pub(crate) operation: Operation,
    pub(crate) repeats: Repeats,
    pub(crate) dialect: &'static dyn Dialect,
    /// The replies to several keys are joined, even if there is one key.
    pub(crate) is_joined: bool,
    /// It stores whole values, whatever was there.
    pub(crate) overwrites: bool,
    /// If it answers that there is nothing, or a zero, it has changed something all the same.
    pub(crate) misses_change: bool,
}

/// Bytes of the writes on their way to other regions, of a node and a worker: so many at most, and no more than one
/// part in so many of what the worker may hold. Each is held twice, as long as it is in its connection's queue.
const COPIES_SIZE_MAX: u64 = 64 << 20;
const COPIES_SHARE: u64 = 8;

#[derive(Debug)]
struct RouteFlow {
    tree: Arc<Tree>,
    root: NodeId,
    errand: Errand,
    /// What was changed already when it began.
    edits: Edits,
    seat: Seat,
    listener: ListenerId,
    /// Numbers mean something else in another one.
    epoch: u64,
    parts: Vec<Part>,
    /// The part that was answered last: servers answer in the order in which they were asked.
    found: usize,
    /// Parts that have no answer yet.
    open: usize,
    /// What it does beside somebody else's request, whom nobody waits for.
    shadows: Option<Shadows>,
    /// What another region has done, which it does after it.
    copy: Option<RegionCopy>,
    /// What comes of it concerns others than its client: keys that are kept, or regions that follow.
    concerns_others: bool,
    size: usize,
}

/// What becomes of one key's request.
#[derive(Debug)]
struct Part {
    question: Question,
    random: u32,
    tasks: Vec<Task>,
    answer: Option<Answer>,
}

#[derive(Debug)]
struct Task {
    parent: Option<(usize, usize)>,
    /// `None` at a leaf.
    node: Option<NodeId>,
    edits: Edits,
    answers: Vec<Option<Answer>>,
    asked: Vec<bool>,
    /// At a leaf.
    backend: BackendId,
    attempt: RequestId,
    is_over: bool,
    /// With what a shadow answers.
    comparison: Option<Comparison>,
    /// At a node of regions: of what is written.
    passage: Option<Arc<Passage>>,
}

/// How a request differs from what the client asked.
#[derive(Clone, Debug, Default)]
struct Edits {
    key: Option<Vec<u8>>,
    ttl_ms: Option<u64>,
    removes: bool,
}

/// What follows a write in another region.
#[derive(Debug)]
struct RegionCopy {
    node: NodeId,
    passage: Arc<Passage>,
    /// Another write of the key was under way, so the region forgets it.
    is_undone: bool,
}

/// Of which node a request is the shadow.
#[derive(Debug)]
struct Shadows {
    node: NodeId,
    comparison: Option<Comparison>,
}

/// Two answers, of which whoever comes second compares.
#[derive(Clone, Debug, Default)]
struct Comparison(Arc<[AtomicU64; 2]>);

impl Comparison {
    /// Returns whether they differ, if this one is the second.
    fn tell(&self, side: usize, answer: &Answer) -> Option<bool> {
        // 0 is none yet.
        let own = answer.digest.wrapping_mul(31).wrapping_add(answer.kind.severity().into()) | 1;
        self.0[side].store(own, Ordering::Relaxed);
        match self.0[1 - side].load(Ordering::Relaxed) {
            0 => None,
            other => Some(own != other),
        }
    }
}

impl Edits {
    fn key<'k>(&'k self, question: &'k Question) -> &'k [u8] {
        self.key.as_deref().unwrap_or(&question.key)
    }

    fn with(&self, change: Change, question: &Question) -> Self {
        let mut edits = self.clone();
        match change {
            Change::None => {}
            Change::Ttl(ttl_ms) => {
                edits.ttl_ms = Some(edits.ttl_ms.map_or(ttl_ms, |own| own.min(ttl_ms)));
            }
            Change::Delete => edits.removes = true,
            Change::Copy(copy) | Change::DeleteCopy(copy) => {
                let name = [self.key(question), format!("::{copy}").as_bytes()].concat();
                edits.key = Some(name);
                edits.removes |= matches!(change, Change::DeleteCopy(_));
            }
        }
        edits
    }
}

impl Part {
    fn new(question: Question, random: u32) -> Self {
        Self { question, random, tasks: Vec::new(), answer: None }
    }
}

impl RouteFlow {
    fn ask(&self, part: usize) -> Ask {
        let Part { question, random, .. } = &self.parts[part];
        Ask {
            operation: self.errand.operation,
            repeats: self.errand.repeats,
            share: share_of(&question.key),
            random: *random,
            has_word: self.errand.dialect.has_word(question),
            overwrites: self.errand.overwrites,
            misses_change: self.errand.misses_change,
            removes: false,
            is_copy: self.copy.is_some(),
        }
    }

    /// The route, if it is there still: after a reload only the client says where.
    fn route<'e>(&self, cx: &'e FlowContext<'_>) -> Option<&'e Listener> {
        match cx.client() {
            ClientId::NONE if cx.engine.epoch != self.epoch => None,
            ClientId::NONE => cx.engine.listeners.get(self.listener),
            client => Some(cx.engine.listener_of(client)),
        }
    }

    fn count(&self, cx: &FlowContext<'_>, counter: PoolCounter) {
        if let Some(route) = self.route(cx) {
            cx.engine.metrics.add_pool(route.metrics, counter, 1);
        }
    }

    /// Asks a node, and what is below it.
    fn descend(
        &mut self,
        cx: &mut FlowContext<'_>,
        part: usize,
        parent: Option<(usize, usize)>,
        mut node: NodeId,
        mut edits: Edits,
    ) {
        let tree = Arc::clone(&self.tree);
        loop {
            // Of a copy everything is kept that fails.
            if self.copy.is_some() && matches!(tree.node(node), Node::Spool { .. }) {
                break;
            }
            let key = edits.key(&self.parts[part].question);
            let own = &self.parts[part].question.key;
            match tree.choice(node, (key, own), self.errand.operation) {
                Choice::Child(child, arm) => {
                    if let Some((prefix, rewrite)) = arm.and_then(|arm| arm.rewriting()) {
                        edits.key = Some([rewrite, &key[prefix.len()..]].concat());
                    }
                    node = child;
                }
                Choice::Nothing => {
                    return self.answered(cx, part, parent, Answer::word(Word::NoRoute));
                }
                Choice::Itself => break,
            }
        }
        self.concerns_others |=
            matches!(tree.node(node), Node::Spool { .. } | Node::Regions { .. });
        let width = tree.node(node).width();
        let backend = match tree.node(node) {
            Node::Leaf(backend) => Some(*backend),
            _ => None,
        };
        let task = self.parts[part].tasks.len();
        self.parts[part].tasks.push(Task {
            parent,
            node: backend.is_none().then_some(node),
            edits,
            answers: vec![None; width],
            asked: vec![false; width],
            backend: backend.unwrap_or(BackendId::NONE),
            attempt: RequestId::NONE,
            is_over: false,
            comparison: None,
            passage: None,
        });
        match backend {
            Some(_) => self.ask_leaf(cx, part, task),
            None => {
                let verdict = node::begin(tree.node(node), &self.ask(part), cx.engine.now);
                self.follow(cx, part, task, verdict);
            }
        }
    }

    /// Sends a leaf's request.
    fn ask_leaf(&mut self, cx: &mut FlowContext<'_>, part: usize, task: usize) {
        let Errand { operation, dialect, .. } = self.errand;
        let Part { question, tasks, .. } = &self.parts[part];
        let Task { edits, backend, .. } = &tasks[task];
        let backend = self.backend_now(cx.engine, *backend);
        let key = edits.key(question);
        if edits.key.is_some() && !dialect.takes(question, key) {
            return self.answered_leaf(cx, part, task, Answer::word(Word::UnfitKey));
        }
        let access = match operation {
            Operation::Read if edits.removes => Access::Write,
            Operation::Read if question.asks_unique => Access::Walk,
            Operation::Read => Access::Read,
            Operation::Write | Operation::Delete => Access::Write,
        };
        let (mut text, expect, asked) = match (edits.removes, &edits.key) {
            (true, _) => dialect.removal(question, key),
            (false, Some(key)) => (dialect.about(question, key), question.expect, question.asked),
            (false, None) => (question.text.clone(), question.expect, question.asked),
        };
        let behind = match edits.ttl_ms {
            Some(ttl_ms) if operation == Operation::Write && !edits.removes => {
                dialect.limit_life(question, &mut text, key, ttl_ms)
            }
            _ => None,
        };
        let size = text.len() + behind.as_ref().map_or(0, Vec::len);
        let engine = &mut *cx.engine;
        let lane = match dialect.is_risky(expect) {
            true => engine.lane_alone(self.seat, backend, key),
            false => engine.lane_from(self.seat, backend, (key, access), size),
        };
        let lane = match lane {
            Ok(lane) => lane,
            Err(failure) => {
                let kind = Kind::of_unsent(failure.why);
                return self.answered_leaf(cx, part, task, Answer::failure(kind, failure));
            }
        };
        let server = engine.lanes[lane].server;
        let unknown = &engine.backends[backend].servers[server].unknown;
        if let Some(word) = dialect.refusal(expect, unknown, engine.now) {
            return self.answered_leaf(cx, part, task, Answer::word(word));
        }
        if question.names_unique
            && !edits.removes
            && let Some(untagged) = dialect.untag(engine, lane, &text)
        {
            text = untagged;
        }
        let attempt = engine.add_attempt(cx.request, RequestId::NONE);
        let is_tagged = question.asks_unique && engine.backends[backend].has_tags();
        let slot = &mut engine.requests[attempt];
        (slot.backend, slot.expect, slot.asked) = (backend, expect, asked);
        slot.is_tagged = is_tagged;
        engine.send(lane, attempt, Payload::Bytes(&text));
        if access == Access::Write && engine.backends[backend].topology.writes_to_all() {
            engine.forget_at_copies(lane, key);
        }
        if let Some(text) = behind {
            engine.say_behind(lane, &text);
        }
        self.parts[part].tasks[task].attempt = attempt;
    }

    /// Does what a node has said.
    fn follow(&mut self, cx: &mut FlowContext<'_>, part: usize, task: usize, verdict: Verdict) {
        match verdict {
            Verdict::Wait => {}
            Verdict::Ask(children) => self.ask_children(cx, part, task, children),
            Verdict::Answer(child) => {
                let answer = self.parts[part].tasks[task].answers[child].clone();
                let answer = answer.unwrap_or_else(|| Answer::word(Word::Unknown));
                self.answered_node(cx, part, task, answer);
            }
            Verdict::Say(word) => {
                if word == Word::Overloaded {
                    self.count(cx, PoolCounter::RouteRefused);
                }
                self.answered_node(cx, part, task, Answer::word(word));
            }
            Verdict::SayAndAsk(word, children) => {
                // Whatever they say, at once or later, is too late.
                self.answered_node(cx, part, task, Answer::word(word));
                self.ask_children(cx, part, task, children);
            }
            Verdict::AnswerAndCopy(child, others) => {
                for (other, change) in others {
                    self.copy_to(cx, part, task, (other, change));
                }
                self.follow(cx, part, task, Verdict::Answer(child));
            }
            Verdict::Keep(child) => {
                let is_kept = self.keep(cx, part, task, child);
                if self.copy.is_some() && is_kept {
                    self.count(cx, PoolCounter::RegionForgets);
                }
                let is_removal = self.errand.operation == Operation::Delete
                    || self.parts[part].tasks[task].edits.removes;
                match is_kept && is_removal {
                    // As if nothing had been there, which nobody will see any more.
                    true => {
                        let answer = Answer { kind: Kind::Miss, ..Answer::word(Word::Unknown) };
                        self.answered_node(cx, part, task, answer);
                    }
                    false => self.follow(cx, part, task, Verdict::Answer(child)),
                }
            }
            Verdict::AnswerAndFill(child, cold) => {
                self.fill(cx, part, task, [child, cold]);
                self.follow(cx, part, task, Verdict::Answer(child));
            }
        }
    }

    fn ask_children(
        &mut self,
        cx: &mut FlowContext<'_>,
        part: usize,
        task: usize,
        children: Vec<(usize, Change)>,
    ) {
        let Some(node) = self.parts[part].tasks[task].node else { return };
        let tree = Arc::clone(&self.tree);
        if let Node::Failover { .. } = tree.node(node)
            && children.iter().any(|&(child, _)| child > 0)
        {
            self.count(cx, PoolCounter::RouteFailovers);
        }
        let is_shadowed = matches!(tree.node(node), Node::Shadow { .. });
        if let Node::Regions { .. } = tree.node(node) {
            let Part { question, tasks, .. } = &mut self.parts[part];
            let slot = &mut tasks[task];
            let passage = cx.engine.passages.begin(slot.edits.key(question));
            slot.passage = Some(Arc::new(passage));
        }
        // All count as asked before the first may answer.
        for &(child, _) in &children {
            self.parts[part].tasks[task].asked[child] = true;
        }
        for (child, change) in children {
            if is_shadowed && child > 0 {
                self.shadow(cx, part, task, node);
                continue;
            }
            let Part { question, tasks, .. } = &self.parts[part];
            let edits = tasks[task].edits.with(change, question);
            self.descend(cx, part, Some((task, child)), tree.node(node).child(child), edits);
        }
    }

    /// A leaf has answered.
    fn answered_leaf(
        &mut self,
        cx: &mut FlowContext<'_>,
        part: usize,
        task: usize,
        answer: Answer,
    ) {
        let slot = &mut self.parts[part].tasks[task];
        slot.is_over = true;
        let parent = slot.parent;
        self.answered(cx, part, parent, answer);
    }

    /// A node has its answer.
    fn answered_node(
        &mut self,
        cx: &mut FlowContext<'_>,
        part: usize,
        task: usize,
        answer: Answer,
    ) {
        let slot = &mut self.parts[part].tasks[task];
        if std::mem::replace(&mut slot.is_over, true) {
            return;
        }
        let parent = slot.parent;
        if let Some(comparison) = &slot.comparison
            && comparison.tell(0, &answer) == Some(true)
        {
            self.count(cx, PoolCounter::ShadowDiffers);
        }
        self.release(part, task);
        self.answered(cx, part, parent, answer);
    }

    /// Nothing is on its way any more that a node counts.
    fn release(&self, part: usize, task: usize) {
        let slot = &self.parts[part].tasks[task];
        if let Some(node) = slot.node
            && let Node::Outstanding { busy, .. } = self.tree.node(node)
            && slot.asked[0]
        {
            busy.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A child of a task has answered, or what was asked first.
    fn answered(
        &mut self,
        cx: &mut FlowContext<'_>,
        part: usize,
        parent: Option<(usize, usize)>,
        answer: Answer,
    ) {
        let Some((task, child)) = parent else {
            let slot = &mut self.parts[part];
            if slot.answer.is_none() {
                slot.answer = Some(answer);
                self.open -= 1;
            }
            return;
        };
        let mut ask = self.ask(part);
        let slot = &mut self.parts[part].tasks[task];
        ask.removes = slot.edits.removes;
        slot.answers[child] = Some(answer);
        let Some(node) = slot.node.filter(|_| !slot.is_over) else { return };
        let answers = Answers { all: &slot.answers, asked: &slot.asked, last: child };
        let verdict = node::judge(self.tree.node(node), &ask, &answers);
        if let Verdict::Ask(_) = verdict {
            if cx.engine.epoch != self.epoch {
                // The tree's backends may be others now.
                return self.follow(cx, part, task, Verdict::Answer(child));
            }
            // What the client asks next must not overtake what is asked now.
            cx.fence();
        }
        self.follow(cx, part, task, verdict);
    }

    /// A backend of the tree as it is numbered now: a reload may have given it another number, or taken it out.
    fn backend_now(&self, engine: &Engine, backend: BackendId) -> BackendId {
        if engine.epoch == self.epoch {
            return backend;
        }
        let name = self.tree.name_of(backend);
        let is_it = |(_, it): &(BackendId, &Backend)| Some(it.config.name.as_str()) == name;
        engine.backends.entries().find(is_it).map_or(BackendId::NONE, |(id, _)| id)
    }

    /// Keeps it that the server of a child, a leaf, is to forget the key. Returns whether that is kept.
    fn keep(&self, cx: &mut FlowContext<'_>, part: usize, task: usize, child: usize) -> bool {
        let Part { question, tasks, .. } = &self.parts[part];
        let Some(node) = tasks[task].node else { return false };
        let leaf = self.tree.node(node).child(child);
        let key = tasks[task].edits.key(question);
        // What servers do not take was never there.
        self.errand.dialect.takes(question, key) && self.keep_below(cx.engine, leaf, key)
    }

    /// The same of the first leaf below a node.
    fn keep_below(&self, engine: &mut Engine, node: NodeId, key: &[u8]) -> bool {
        let backend = self.backend_now(engine, self.tree.first_of(node));
        let server = engine.server_for(ClientId::NONE, backend, key, Access::Write);
        let Engine { spooling, backends, metrics, timers, now, .. } = engine;
        let (Some(server), Some(state)) = (server, backends.get(backend)) else { return false };
        let database = match state.protocol {
            Protocol::Redis => state.database_of(self.seat.database),
            _ => 0,
        };
        spooling.keep(state, server, (database, key), metrics, (*now, timers))
    }

    /// The leaf that has given a child's answer.
    fn leaf_of(&self, part: usize, task: usize, child: usize) -> Option<&Task> {
        let answer = self.parts[part].tasks[task].answers[child].as_ref()?;
        let Text::Reply(attempt) = answer.text else { return None };
        self.parts[part].tasks.iter().find(|task| task.attempt == attempt)
    }

    /// Has the cold child get what the warm one has.
    fn fill(
        &mut self,
        cx: &mut FlowContext<'_>,
        part: usize,
        task: usize,
        [warm, cold]: [usize; 2],
    ) {
        let Some(node) = self.parts[part].tasks[task].node else { return };
        let Node::WarmUp { ttl_ms, .. } = *self.tree.node(node) else { return };
        let question = &self.parts[part].question;
        let side = |child| {
            let leaf = self.leaf_of(part, task, child)?;
            Some(Side { backend: leaf.backend, key: leaf.edits.key(question).to_vec() })
        };
        let (Some(warm), Some(cold)) = (side(warm), side(cold)) else { return };
        if self.errand.dialect.fill(cx.engine, self.seat, Fill { warm, cold, ttl_ms }) {
            self.count(cx, PoolCounter::WarmUpFills);
        }
    }

    /// Asks a shadow, as somebody whom nobody waits for.
    fn shadow(&mut self, cx: &mut FlowContext<'_>, part: usize, task: usize, node: NodeId) {
        let tree = Arc::clone(&self.tree);
        let Node::Shadow { to: [_, child], compare, outstanding_max, busy, .. } = tree.node(node)
        else {
            return;
        };
        if busy.load(Ordering::Relaxed) >= *outstanding_max {
            return;
        }
        busy.fetch_add(1, Ordering::Relaxed);
        self.count(cx, PoolCounter::ShadowSent);
        let comparison = compare.then(Comparison::default);
        let Part { question, random, tasks, .. } = &mut self.parts[part];
        tasks[task].comparison.clone_from(&comparison);
        let edits = tasks[task].edits.clone();
        let shadow = Part::new(question.clone(), *random);
        let backend = tree.first_of(*child);
        let Self { errand, seat, listener, epoch, .. } = self;
        let flow = Self {
            tree: Arc::clone(&tree),
            root: *child,
            errand: Errand { is_joined: false, ..errand.clone() },
            edits,
            seat: *seat,
            listener: *listener,
            epoch: *epoch,
            parts: vec![shadow],
            found: 0,
            open: 1,
            shadows: Some(Shadows { node, comparison }),
            copy: None,
            concerns_others: true,
            size: 0,
        };
        let now = cx.engine.now;
        let (request, _) = cx.engine.requests.add(backend, ClientId::NONE, now);
        cx.engine.start_flow(request, Box::new(flow));
    }

    /// Has another region do what the primary one has done, as somebody whom nobody waits for.
    fn copy_to(
        &mut self,
        cx: &mut FlowContext<'_>,
        part: usize,
        task: usize,
        (other, change): (usize, Change),
    ) {
        let Part { question, random, tasks, .. } = &self.parts[part];
        let (Some(node), Some(passage)) = (tasks[task].node, &tasks[task].passage) else { return };
        let flow = Self {
            tree: Arc::clone(&self.tree),
            root: self.tree.node(node).child(other),
            errand: Errand { is_joined: false, ..self.errand.clone() },
            edits: tasks[task].edits.with(change, question),
            seat: self.seat,
            listener: self.listener,
            epoch: self.epoch,
            parts: vec![Part::new(question.clone(), *random)],
            found: 0,
            open: 1,
            shadows: None,
            copy: Some(RegionCopy { node, passage: Arc::clone(passage), is_undone: false }),
            concerns_others: true,
            size: question.size(),
        };
        let counter = flow.start_copy(cx.engine);
        self.count(cx, counter);
    }

    /// Sends what another region is to do, or has it forget the key if there is too much on its way. Returns how
    /// that counts. Whoever has begun the passage holds it until then.
    fn start_copy(self, engine: &mut Engine) -> PoolCounter {
        let tree = Arc::clone(&self.tree);
        let node = self.copy.as_ref().map(|copy| tree.node(copy.node));
        let Some(Node::Regions { outstanding_max, busy, busy_size, .. }) = node else {
            return PoolCounter::RegionForgets;
        };
        let size = self.size as u64;
        let size_max = engine.pressure.share(COPIES_SHARE).min(COPIES_SIZE_MAX);
        if busy.load(Ordering::Relaxed) >= *outstanding_max
            || busy_size.load(Ordering::Relaxed) + size > size_max
        {
            self.keep_below(engine, self.root, self.edits.key(&self.parts[0].question));
            return PoolCounter::RegionForgets;
        }
        busy.fetch_add(1, Ordering::Relaxed);
        busy_size.fetch_add(size, Ordering::Relaxed);
        let counter = match self.edits.removes {
            true => PoolCounter::RegionForgets,
            false => PoolCounter::RegionCopies,
        };
        let backend = self.backend_now(engine, tree.first_of(self.root));
        if backend == BackendId::NONE {
            // The pool is gone. What was begun ends here.
            Box::new(self).recycle(engine);
            return counter;
        }
        let (request, _) = engine.requests.add(backend, ClientId::NONE, engine.now);
        engine.start_flow(request, Box::new(self));
        counter
    }

    /// A copy has arrived, or will be removed. If another write of the key was under way, who knows which came
    /// last: the region forgets it.
    fn undo_crossed(&mut self, cx: &mut FlowContext<'_>) {
        let Some(copy) = &mut self.copy else { return };
        let is_crossed = cx.engine.passages.is_crossed(&copy.passage);
        if copy.is_undone || self.edits.removes || !is_crossed {
            return;
        }
        copy.is_undone = true;
        self.edits.removes = true;
        let Part { question, random, .. } = &self.parts[0];
        self.parts = vec![Part::new(question.clone(), *random)];
        self.open = 1;
        self.count(cx, PoolCounter::RegionForgets);
        self.descend(cx, 0, None, self.root, self.edits.clone());
    }

    /// The leaf that an attempt is of.
    fn find(&mut self, attempt: RequestId) -> Option<(usize, usize)> {
        let count = self.parts.len();
        let (part, task) = (self.found..self.found + count).find_map(|at| {
            let part = at % count;
            let task = self.parts[part].tasks.iter().position(|task| task.attempt == attempt)?;
            Some((part, task))
        })?;
        self.found = part;
        Some((part, task))
    }

    /// What is next.
    fn conclude(&mut self, cx: &mut FlowContext<'_>) -> Step {
        if self.open == 0 {
            // It may be asked once more.
            self.undo_crossed(cx);
        }
        if self.open > 0 {
            return Step::Wait;
        }
        if self.copy.is_some() {
            return Step::Reply(cx.engine.bufs.take());
        }
        if let Some(Shadows { comparison, .. }) = &self.shadows {
            if let (Some(comparison), Some(answer)) = (comparison, &self.parts[0].answer)
                && comparison.tell(1, answer) == Some(true)
            {
                self.count(cx, PoolCounter::ShadowDiffers);
            }
            return Step::Reply(cx.engine.bufs.take());
        }
        let replies: Vec<Vec<u8>> =
            (0..self.parts.len()).map(|part| self.reply(cx, part)).collect();
        let dialect = self.errand.dialect;
        let question = &self.parts[0].question;
        let mut reply = match (&replies[..], self.errand.is_joined) {
            ([_], false) => replies.into_iter().next().unwrap_or_default(),
            (replies, _) => {
                let is_error = |at: &usize| {
                    self.parts[*at].answer.as_ref().is_some_and(|it| !it.kind.is_good())
                };
                // As of fragments: the error of one is the answer of all.
                match (0..replies.len()).find(is_error) {
                    Some(at) => replies[at].clone(),
                    None => dialect.join(question, replies),
                }
            }
        };
        if dialect.is_unwanted(question, &mut reply) {
            cx.engine.requests[cx.request].silent = true;
        }
        let room = reply.len();
        Step::Reply(cx.engine.written(room, |out| out.extend_from_slice(&reply)))
    }

    /// What is said of one key.
    fn reply(&self, cx: &FlowContext<'_>, part: usize) -> Vec<u8> {
        let Part { question, tasks, answer, .. } = &self.parts[part];
        let dialect = self.errand.dialect;
        let mut out = Vec::new();
        match answer.as_ref().map(|answer| &answer.text) {
            Some(Text::Reply(attempt)) => {
                let (seen, reply) = cx.seen();
                let reply = match seen == *attempt {
                    true => reply,
                    false => &cx.engine.requests[*attempt].reply,
                };
                let task = tasks.iter().find(|task| task.attempt == *attempt);
                let asked = task.and_then(|task| task.edits.key.as_deref());
                match asked.and_then(|asked| dialect.restored(question, asked, reply)) {
                    Some(restored) => out = restored,
                    None => out.extend_from_slice(reply),
                }
            }
            Some(Text::Failure(failure)) => {
                let client = cx.client();
                let misses = client != ClientId::NONE && cx.engine.destination_of(client).misses;
                dialect.write_failure(question, failure, misses, &mut out);
            }
            Some(Text::Word(word)) => dialect.write_word(question, *word, &mut out),
            None => {}
        }
        out
    }
}

impl Flow for RouteFlow {
    fn on_begin(&mut self, cx: &mut FlowContext<'_>) -> Step {
        for part in 0..self.parts.len() {
            self.descend(cx, part, None, self.root, self.edits.clone());
        }
        self.conclude(cx)
    }

    fn on_reply(&mut self, cx: &mut FlowContext<'_>, attempt: RequestId, reply: &[u8]) -> Step {
        if let Some((part, task)) = self.find(attempt) {
            let kind = self.errand.dialect.kind(&self.parts[part].question, reply);
            let digest = self.errand.dialect.digest(&self.parts[part].question, reply);
            let answer = Answer { kind, digest, text: Text::Reply(attempt) };
            self.answered_leaf(cx, part, task, answer);
        }
        self.conclude(cx)
    }

    fn on_failure(
        &mut self,
        cx: &mut FlowContext<'_>,
        attempt: RequestId,
        why: NamedFailure,
    ) -> Step {
        if let Some((part, task)) = self.find(attempt) {
            self.answered_leaf(cx, part, task, Answer::failure(Kind::of_failure(why.why), why));
        }
        self.conclude(cx)
    }

    fn outlives_client(&self) -> bool {
        self.concerns_others
    }

    fn size(&self) -> usize {
        self.size
    }

    fn recycle(self: Box<Self>, engine: &mut Engine) {
        for (part, it) in self.parts.iter().enumerate() {
            for (task, slot) in it.tasks.iter().enumerate() {
                if !slot.is_over {
                    self.release(part, task);
                }
            }
        }
        if let Some(shadows) = &self.shadows
            && let Node::Shadow { busy, .. } = self.tree.node(shadows.node)
        {
            busy.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(copy) = &self.copy
            && let Node::Regions { busy, busy_size, .. } = self.tree.node(copy.node)
        {
            busy.fetch_sub(1, Ordering::Relaxed);
            busy_size.fetch_sub(self.size as u64, Ordering::Relaxed);
        }
        // The last one ends what was begun for all.
        let Self { parts, copy, .. } = *self;
        let tasks = parts.into_iter().flat_map(|part| part.tasks);
        let passages = tasks.filter_map(|task| task.passage);
        let passages = passages.chain(copy.map(|copy| copy.passage));
        for passage in passages.filter_map(Arc::into_inner) {
            engine.passages.end(&passage);
        }
    }
}

impl Engine {
    /// Asks a tree in a client's place.
    pub(crate) fn ask_route(
        &mut self,
        client: ClientId,
        tree: &Arc<Tree>,
        errand: Errand,
        questions: Vec<Question>,
    ) -> Plan {
        let request = self.new_request(client);
        if !questions.iter().all(|question| question.text.len() < LARGE_MIN) {
            // As of any large request: what follows could be overtaken, or overtake it.
            self.clients[client].fenced = true;
        }
        if errand.operation != Operation::Read {
            self.note_write(client);
        }
        let seat = self.seat_of(client);
        let size = questions.iter().map(Question::size).sum::<usize>();
        let listener = self.clients[client].listener;
        let open = questions.len();
        let random = self.rng.next() as u32;
        let flow = RouteFlow {
            tree: Arc::clone(tree),
            root: tree.root(),
            errand,
            edits: Edits::default(),
            seat,
            listener,
            epoch: self.epoch,
            found: 0,
            parts: questions.into_iter().map(|question| Part::new(question, random)).collect(),
            open,
            shadows: None,
            copy: None,
            concerns_others: false,
            size,
        };
        self.start_flow(request, Box::new(flow));
        Plan::Done
    }
}

/// A write of a key that goes to the primary region of a node without a walk of the tree, as one of a transaction
/// does. It has to be [ended](Engine::end_region_write).
#[derive(Debug)]
pub(crate) struct RegionWrite {
    tree: Arc<Tree>,
    node: NodeId,
    question: Question,
    dialect: &'static dyn Dialect,
    seat: Seat,
    listener: ListenerId,
    epoch: u64,
    passage: Passage,
}

impl RegionWrite {
    /// Bytes allocated.
    pub(crate) fn size(&self) -> usize {
        size_of::<Self>() + self.question.size()
    }
}

impl Engine {
    /// A client's write of a key is about to be sent to the primary region of each node of regions on its way.
    /// `question` is one that deletes the key.
    pub(crate) fn begin_region_writes(
        &mut self,
        (client, database): (ClientId, Selected),
        question: &Question,
        dialect: &'static dyn Dialect,
    ) -> Vec<RegionWrite> {
        let Some(tree) = self.destination_of(client).route.clone() else { return Vec::new() };
        let (listener, epoch) = (self.clients[client].listener, self.epoch);
        let seat = Seat { database, ..self.seat_of(client) };
        let nodes = tree.regions_on_way(&question.key, Operation::Write);
        let begin = |node| RegionWrite {
            tree: Arc::clone(&tree),
            node,
            question: question.clone(),
            dialect,
            seat,
            listener,
            epoch,
            passage: self.passages.begin(&question.key),
        };
        nodes.into_iter().map(begin).collect()
    }

    /// What the primary region has said is here. If the key may be another one now all other regions forget it.
    pub(crate) fn end_region_write(&mut self, write: RegionWrite, has_written: bool) {
        let RegionWrite { tree, node, question, dialect, seat, listener, epoch, passage } = write;
        let passage = Arc::new(passage);
        if let Node::Regions { to, primary, .. } = tree.node(node)
            && has_written
        {
            let others = (0..to.len()).filter(|other| other != primary);
            for other in others {
                let flow = RouteFlow {
                    tree: Arc::clone(&tree),
                    root: to[other],
                    errand: Errand {
                        operation: Operation::Delete,
                        repeats: Repeats::Alike,
                        dialect,
                        is_joined: false,
                        overwrites: false,
                        misses_change: false,
                    },
                    edits: Edits { removes: true, ..Edits::default() },
                    seat,
                    listener,
                    epoch,
                    parts: vec![Part::new(question.clone(), 0)],
                    found: 0,
                    open: 1,
                    shadows: None,
                    copy: Some(RegionCopy {
                        node,
                        passage: Arc::clone(&passage),
                        is_undone: false,
                    }),
                    concerns_others: true,
                    size: question.size(),
                };
                let counter = flow.start_copy(self);
                if let Some(route) = self.listeners.get(listener).filter(|_| epoch == self.epoch) {
                    self.metrics.add_pool(route.metrics, counter, 1);
                }
            }
        }
        if let Some(passage) = Arc::into_inner(passage) {
            self.passages.end(&passage);
        }
    }

    fn seat_of(&self, client: ClientId) -> Seat {
        let Client { lane_choice, session, .. } = &self.clients[client];
        let (wire_protocol, database) = (session.wire_protocol, session.database);
        Seat { wire_protocol, database, lane_choice: *lane_choice }
    }
}

impl Question {
    /// Bytes of a part that asks it.
    fn size(&self) -> usize {
        self.text.capacity() + self.key.capacity() + size_of::<Part>()
    }
}

/// From this size on requests take another lane than small ones.
const LARGE_MIN: usize = crate::upstream::bulk::BULK_SIZE;

impl Answer {
    fn word(word: Word) -> Self {
        Self { kind: Kind::Said, digest: 0, text: Text::Word(word) }
    }

    fn failure(kind: Kind, failure: NamedFailure) -> Self {
        Self { kind, digest: 0, text: Text::Failure(failure) }
    }
}

impl Kind {
    /// Of a request that no reply came to. It was perhaps not written, but who says so did not look.
    fn of_failure(why: Failure) -> Self {
        let is_unsent = matches!(
            why,
            Failure::Refused
                | Failure::Unreachable
                | Failure::Unresolved
                | Failure::QueueFull
                | Failure::NoServer
                | Failure::Silent
                | Failure::HandshakeRefused
                | Failure::Busy
                | Failure::Loading
                | Failure::MasterDown
                | Failure::ReadOnly
                | Failure::ClusterDown
                | Failure::DatabaseRefused
                | Failure::WireProtocolRefused
                | Failure::Forgetting
        );
        match is_unsent || why.is_local() {
            true => Self::of_unsent(why),
            false => Self::Failed(crate::base::outcome::Execution::Unknown),
        }
    }

    fn of_unsent(why: Failure) -> Self {
        Self::Failed(crate::base::outcome::Outcome::of(why, false).execution)
    }
}
