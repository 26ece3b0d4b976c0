//! Asks outside who somebody is: see `external_auth` in the configuration.
//!
//! Threads ask, as asking waits for others. There are few of them and they are there only while there is something to
//! ask, so that a service that hangs costs nobody but those who wait for it. The last good answers stand in for ones that
//! do not come. They are known by a keyed hash: no password is kept.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

mod cache;
mod file;
mod http;

use std::collections::{HashMap, VecDeque};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cashew_config::snapshot::{AuthSource, ExternalAuth};
use cashew_metrics::EventKind;
use tracing::{info, warn};
use zeroize::Zeroizing;

use crate::cache::Cache;
use crate::file::Files;
use crate::http::Service;

/// How many are asked about at a time.
pub const THREADS_MAX: usize = 64;
/// How many read files at a time. They do not stand behind those who ask services.
const FILE_THREADS_MAX: usize = 2;
/// How many more may wait for that. Others are told at once that nobody answers.
pub const WAITING_MAX: usize = 4096;

/// Somebody to be known.
pub struct Question<K> {
    /// Comes back with the answer.
    pub key: K,
    pub pool: String,
    pub name: String,
    pub password: Zeroizing<Vec<u8>>,
    /// Where it comes from.
    pub address: String,
}

/// What is known of somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is this user, for so long if there is an end.
    User {
        user: String,
        expires_in: Option<Duration>,
    },
    Refused,
    NoAnswer,
}

pub struct Answer<K> {
    pub key: K,
    pub pool: String,
    pub verdict: Verdict,
    /// The verdict is an earlier one, as there is no answer.
    pub is_cached: bool,
}

/// Asks, and has the answers.
pub struct Authoriser<K> {
    shared: Arc<Shared<K>>,
    answers: Receiver<Answer<K>>,
    /// Readable when there may be answers.
    wake: PipeReader,
}

struct Shared<K> {
    /// Of services and of files.
    waiting: [Mutex<Waiting<K>>; 2],
    answer: Sender<Answer<K>>,
    waker: PipeWriter,
    files: Files,
    service: Service,
    cache: Mutex<Cache>,
    /// Pools whose authoriser did not answer the last time.
    lost: Mutex<HashMap<String, bool>>,
}

/// Questions of one kind of source, and who asks them.
struct Waiting<K> {
    questions: VecDeque<Due<K>>,
    threads: usize,
    threads_max: usize,
}

/// Why there is no answer.
enum Failure {
    /// Whoever should answer did not, and what was known before stands in for that.
    Lost(String),
    /// There was no turn to ask: nothing is known of whoever should answer. What is known of somebody does not stand in,
    /// as strangers could have it do so.
    Unasked,
}

struct Due<K> {
    question: Question<K>,
    auth: Arc<ExternalAuth>,
    deadline: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K: Send + 'static> Authoriser<K> {
    pub fn start() -> io::Result<Self> {
        let (answer, answers) = channel();
        let (wake, waker) = io::pipe()?;
        let waiting = [THREADS_MAX, FILE_THREADS_MAX].map(|threads_max| {
            Mutex::new(Waiting { questions: VecDeque::new(), threads: 0, threads_max })
        });
        let cache = Mutex::new(Cache::new().map_err(|()| io::Error::other("no random bytes"))?);
        let (files, service, lost) = (Files::default(), Service::default(), Mutex::default());
        let shared = Shared { waiting, answer, waker, files, service, cache, lost };
        Ok(Self { shared: Arc::new(shared), answers, wake })
    }

    /// There will be one answer, at the latest soon after the time that `auth` allows.
    pub fn ask(&self, question: Question<K>, auth: &Arc<ExternalAuth>) {
        let deadline = Instant::now() + Duration::from_millis(auth.timeout_ms);
        let due = Due { question, auth: Arc::clone(auth), deadline };
        let kind = usize::from(matches!(auth.source, AuthSource::File(_)));
        let mut waiting = lock(&self.shared.waiting[kind]);
        if waiting.questions.len() >= WAITING_MAX {
            drop(waiting);
            return self.shared.settle(due, Err(Failure::Unasked));
        }
        waiting.questions.push_back(due);
        if waiting.threads < waiting.threads_max {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name("authoriser".to_owned());
            match thread.spawn(move || shared.work(kind)) {
                Ok(_) => waiting.threads += 1,
                Err(error) if waiting.threads == 0 => {
                    let due = waiting.questions.pop_back();
                    drop(waiting);
                    if let Some(due) = due {
                        let why = format!("no thread can be started: {error}");
                        self.shared.note(&due.question.pool, &due.auth.source, Some(&why));
                        self.shared.settle(due, Err(Failure::Unasked));
                    }
                }
                // Those that there are go on to it.
                Err(_) => {}
            }
        }
    }

    pub fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Takes the answers that are there. Call it when [`Authoriser::wake`] is readable.
    pub fn answers(&mut self) -> Vec<Answer<K>> {
        // One byte per answer. A read never blocks, and what is not read wakes again. Read are more than logins come
        // meanwhile, so that the pipe is never full.
        let mut bytes = [0; 4096];
        let _ = self.wake.read(&mut bytes);
        self.answers.try_iter().collect()
    }
}

impl<K> Drop for Authoriser<K> {
    fn drop(&mut self) {
        self.shared.waiting.iter().for_each(|waiting| lock(waiting).questions.clear());
    }
}

impl<K> Shared<K> {
    /// Asks until there is nothing left to ask.
    fn work(&self, kind: usize) {
        loop {
            let mut waiting = lock(&self.waiting[kind]);
            let Some(due) = waiting.questions.pop_front() else {
                waiting.threads -= 1;
                return;
            };
            drop(waiting);
            let outcome = self.outcome(&due);
            self.settle(due, outcome);
        }
    }

    fn outcome(&self, due: &Due<K>) -> Result<Verdict, Failure> {
        let Due { question, auth, deadline } = due;
        match &auth.source {
            AuthSource::File(path) => {
                let name = (&*question.pool, &*question.name);
                self.files.verdict(path, name, &question.password).map_err(Failure::Lost)
            }
            AuthSource::Http { url, ca, token_file } => {
                let now = Instant::now();
                if now >= *deadline {
                    return Err(Failure::Unasked);
                }
                // All of the time is for the answer, however long it has waited for its turn.
                let until = now + Duration::from_millis(auth.timeout_ms);
                let Ok(password) = std::str::from_utf8(&question.password) else {
                    return Ok(Verdict::Refused);
                };
                let asked = http::Asked {
                    pool: &question.pool,
                    name: &question.name,
                    password,
                    address: &question.address,
                };
                let (ca, token_file) = (ca.as_deref(), token_file.as_deref());
                self.service.verdict(url, ca, token_file, &asked, until).map_err(Failure::Lost)
            }
        }
    }

    /// Answers, with what was known before if there is no other answer.
    fn settle(&self, due: Due<K>, outcome: Result<Verdict, Failure>) {
        let Due { question: Question { key, pool, name, password, .. }, auth, .. } = due;
        match &outcome {
            Ok(_) => self.note(&pool, &auth.source, None),
            Err(Failure::Lost(why)) => self.note(&pool, &auth.source, Some(why)),
            Err(Failure::Unasked) => {}
        }
        let (verdict, is_cached) = {
            let mut cache = lock(&self.cache);
            // With all that makes it another source, also what is not shown.
            let source = format!("{:?}", auth.source);
            let place = cache.place(&[&pool, &source, &name], &password);
            match outcome {
                Ok(verdict) => {
                    match &verdict {
                        Verdict::User { user, expires_in } if auth.cache_ms > 0 => {
                            cache.keep(place, user, *expires_in);
                        }
                        _ => cache.forget(&place),
                    }
                    (verdict, false)
                }
                Err(Failure::Unasked) => (Verdict::NoAnswer, false),
                Err(Failure::Lost(_)) => {
                    match cache.get(&place, Duration::from_millis(auth.cache_ms)) {
                        Some(verdict) => (verdict, true),
                        None => (Verdict::NoAnswer, false),
                    }
                }
            }
        };
        // Nobody may be there any more.
        let _ = self.answer.send(Answer { key, pool, verdict, is_cached });
        let _ = (&self.waker).write(&[0]);
    }

    /// Tells of an authoriser that does not answer any more, or does again.
    fn note(&self, pool: &str, source: &AuthSource, failure: Option<&String>) {
        let is_lost = failure.is_some();
        let before = lock(&self.lost).insert(pool.to_owned(), is_lost).unwrap_or_default();
        match failure {
            Some(why) if !before => {
                warn!(
                    kind = EventKind::AuthoriserLost.name(),
                    pool, "pool {pool}: the external authoriser {source} does not answer: {why}"
                );
            }
            None if before => {
                info!(
                    kind = EventKind::AuthoriserBack.name(),
                    pool, "pool {pool}: the external authoriser {source} answers again"
                );
            }
            _ => {}
        }
    }
}
