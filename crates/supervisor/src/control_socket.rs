//! The operators' socket: `cashew reload`, `upgrade` and `status` connect here.
//!
//! It never blocks: it reads commands and writes answers as far as possible and keeps the rest for
//! later, so a hanging operator delays nobody. The master carries the commands out and provides the
//! answers.

use std::cell::RefCell;
use std::env;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use cashew_process::log::EventRecord;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::geteuid;
use tracing::{info, warn};

use crate::audited::Principal;
use crate::command::{Answer, COMMAND_SIZE_MAX, Command, Reply};
use crate::state::Pack;
use crate::status::Status;
use crate::unix_socket::{self, BindError, UnixSocket, UnixSocketState};

/// The most operators at a time. One more replaces an operator whose command is not complete; if
/// all wait for answers, it is refused.
const CLIENTS_MAX: usize = 16;

/// The most connections accepted per tick, so that each gets to send its command before others can
/// replace it.
const ACCEPTS_MAX: usize = CLIENTS_MAX / 4;

/// Bytes that are read at once.
const READ_SIZE: usize = 4096;

/// The most unread output; beyond it the connection is closed.
const OUTPUT_SIZE_MAX: usize = 4 << 20;

/// How long an operator may take to send its command, and to read the last answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many files are checked for stale sockets.
const SWEEP_MAX: usize = 256;

const BACKLOG: i32 = 128;

/// How long to stop accepting after a failure, mostly for lack of descriptors. Waiting clients
/// would make the socket readable all the time.
const REST: Duration = Duration::from_millis(200);

/// An operator who sent a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OperatorId(u64);

#[derive(Debug)]
pub(crate) struct ControlSocket {
    socket: UnixSocket,
    operators: Vec<Operator>,
    /// Until when nobody is accepted.
    rests_until: Option<Instant>,
    next_id: u64,
    /// Pending answers, in order.
    answers: Rc<RefCell<Vec<(OperatorId, Answer)>>>,
}

struct Mailbox {
    id: OperatorId,
    /// Allows an answer without the control socket, which does not survive an exec.
    stream: Option<UnixStream>,
    answers: Rc<RefCell<Vec<(OperatorId, Answer)>>>,
}

#[derive(Debug)]
struct Operator {
    id: OperatorId,
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    state: State,
    /// When the connection is closed, whatever its state. `None` while the master owes an answer.
    deadline: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Asking,
    /// Waits for answers.
    Waiting,
    /// Nothing follows what is in `output`.
    Answered,
    Gone,
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
#[error("no socket for operators at {path}: {why}")]
pub struct ControlSocketError {
    path: PathBuf,
    why: String,
}

/// Paths of the control socket for a configuration file that sets none, most likely first.
///
/// The file's own name is not resolved, so the instance is found even if the file is a link that
/// points elsewhere by now.
pub fn default_paths(conf_file: &Path) -> io::Result<Vec<PathBuf>> {
    let absolute = std::path::absolute(conf_file)?;
    let resolved = match (absolute.parent().map(fs::canonicalize), absolute.file_name()) {
        (Some(Ok(directory)), Some(name)) => directory.join(name),
        _ => absolute,
    };
    let name = format!("{:016x}.sock", fnv1a(resolved.as_os_str()));
    let runtime = env::var_os("XDG_RUNTIME_DIR").filter(|path| Path::new(path).is_absolute());
    let directories = [
        Some(PathBuf::from("/run/cashew")),
        runtime.map(|path| Path::new(&path).join("cashew")),
        Some(PathBuf::from(format!("/tmp/cashew-{}", geteuid().as_raw()))),
    ];
    Ok(directories.into_iter().flatten().map(|directory| directory.join(&name)).collect())
}

fn fnv1a(text: &OsStr) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    text.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Sends a command to the instance that listens at `path`, and calls `on_answer` for each line. The
/// last one is [`Answer::Done`] or [`Answer::Failed`], unless an error is returned.
pub fn ask(
    path: &Path,
    command: &Command,
    mut on_answer: impl FnMut(Answer),
) -> Result<(), AskError> {
    let mut stream = UnixStream::connect(path).map_err(AskError::NotThere)?;
    let peer = peer_user(&stream)?;
    let our = geteuid().as_raw();
    // Another user may have put a socket there.
    if our != 0 && peer != 0 && peer != our {
        return Err(AskError::Stranger(peer));
    }
    stream.set_read_timeout(Some(command.answer_timeout()))?;
    let mut line = serde_json::to_vec(command).expect("commands are plain JSON");
    if line.len() > COMMAND_SIZE_MAX {
        return Err(AskError::TooLong);
    }
    line.push(b'\n');
    // An instance that refuses does not read; its answer has the reason.
    let sent = stream.write_all(&line);
    for line in BufReader::new(&stream).lines() {
        let answer = match line {
            Ok(line) => serde_json::from_str(&line).map_err(io::Error::from)?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Err(AskError::Timeout(command.clone()));
            }
            Err(error) => return Err(error.into()),
        };
        let is_last = matches!(answer, Answer::Done(_) | Answer::Failed(_));
        on_answer(answer);
        if is_last {
            return Ok(());
        }
    }
    sent?;
    Err(AskError::Ended)
}

/// Why a command could not be sent, or got no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("{0}")]
    NotThere(io::Error),
    #[error("the socket belongs to another user: {0}")]
    Stranger(u32),
    #[error("the command has more than {} bytes: ask for less at a time", COMMAND_SIZE_MAX)]
    TooLong,
    #[error("no answer for {} seconds; {}", .0.answer_timeout().as_secs(), .0.unanswered())]
    Timeout(Command),
    #[error("the connection has ended before the answer; the command may still be carried out")]
    Ended,
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl AskError {
    /// Whether the instance closed the connection, as it does when it becomes another program.
    pub fn is_cut(&self) -> bool {
        match self {
            Self::Ended => true,
            Self::Io(error) => matches!(
                error.kind(),
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof
            ),
            Self::NotThere(_) | Self::Stranger(_) | Self::TooLong | Self::Timeout(_) => false,
        }
    }
}

impl ControlSocket {
    /// At the configured path, which has to work.
    pub(crate) fn at(path: &Path) -> Result<Self, ControlSocketError> {
        Self::bind(path).map(Self::new)
    }

    pub(crate) fn new(socket: UnixSocket) -> Self {
        Self {
            socket,
            operators: Vec::new(),
            rests_until: None,
            next_id: 0,
            answers: Rc::default(),
        }
    }

    /// For [`ControlSocket::new`] and [`ControlSocket::move_to`].
    pub(crate) fn bind(path: &Path) -> Result<UnixSocket, ControlSocketError> {
        bind(path).map_err(|error| Self::error(path, error))
    }

    /// Listens there from now on. Operators who wait for an answer still get it.
    pub(crate) fn move_to(&mut self, socket: UnixSocket) {
        self.socket = socket;
    }

    /// At the first path whose directory only this user may write to.
    pub(crate) fn at_one_of(paths: &[PathBuf]) -> Result<Self, ControlSocketError> {
        Self::bind_one_of(paths).map(Self::new)
    }

    /// Like [`ControlSocket::bind`], at the first path whose directory only this user may write to.
    pub(crate) fn bind_one_of(paths: &[PathBuf]) -> Result<UnixSocket, ControlSocketError> {
        let mut first_failure = None;
        for path in paths {
            let directory = path.parent().unwrap_or(Path::new("/"));
            let bound = make_directory(directory).map_err(Into::into).and_then(|()| bind(path));
            match bound {
                Ok(socket) => {
                    sweep(directory);
                    return Ok(socket);
                }
                // Operators would find the other socket first, so no later path is tried.
                Err(error @ BindError::InUse) => return Err(Self::error(path, error)),
                Err(error) => {
                    first_failure.get_or_insert_with(|| Self::error(path, error));
                }
            }
        }
        Err(first_failure.unwrap_or_else(|| ControlSocketError {
            path: PathBuf::new(),
            why: "there is no place for it".into(),
        }))
    }

    fn error(path: &Path, why: BindError) -> ControlSocketError {
        ControlSocketError { path: path.into(), why: why.to_string() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.socket.path()
    }

    pub(crate) fn state(&self, pack: &mut Pack) -> io::Result<UnixSocketState> {
        self.socket.state(pack)
    }

    /// Descriptors to poll. Whichever is ready, [`ControlSocket::handle`] checks all.
    pub(crate) fn interest(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let operators = self.operators.iter().map(|it| (it.stream.as_fd(), it.interest()));
        let socket = self.rests_until.is_none().then(|| (self.socket.as_fd(), PollFlags::IN));
        socket.into_iter().chain(operators)
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let deadlines = self.operators.iter().filter_map(|operator| operator.deadline);
        deadlines.chain(self.rests_until).min()
    }

    /// Accepts, reads and writes without blocking. Returns the complete commands.
    pub(crate) fn handle(&mut self, now: Instant) -> Vec<(OperatorId, Command)> {
        self.accept(now);
        let commands: Vec<_> = self
            .operators
            .iter_mut()
            .filter_map(|operator| Some((operator.id, operator.handle(now)?)))
            .collect();
        self.handle_timeout(now);
        commands
    }

    /// The reply for an operator. Its answers go out with the next [`ControlSocket::deliver`].
    pub(crate) fn reply(&self, id: OperatorId) -> Box<dyn Reply> {
        let operator = self.operators.iter().find(|operator| operator.id == id);
        let stream = operator.and_then(|operator| operator.stream.try_clone().ok());
        Box::new(Mailbox { id, stream, answers: Rc::clone(&self.answers) })
    }

    /// Who the operator is.
    pub(crate) fn asker(&self, id: OperatorId) -> Principal {
        let operator = self.operators.iter().find(|operator| operator.id == id);
        let peer = operator.and_then(|it| getsockopt(&it.stream, PeerCredentials).ok());
        match peer {
            Some(peer) => Principal {
                place: format!("pid {}", peer.pid()),
                user: format!("uid {}", peer.uid()),
            },
            None => Principal { place: "control socket".to_owned(), user: String::new() },
        }
    }

    /// Passes answers to their operators. If one has left, its command is carried out all the same,
    /// unless the master looks at [`Reply::is_awaited`].
    pub(crate) fn deliver(&mut self, now: Instant) {
        for (id, answer) in self.answers.take() {
            if let Some(operator) = self.operators.iter_mut().find(|it| it.id == id) {
                operator.answer(&answer, now);
            }
        }
        self.handle_timeout(now);
    }

    /// Closes connections that are done, closed by the operator, or too slow.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.rests_until = self.rests_until.filter(|&until| now < until);
        self.operators.retain(|operator| !operator.is_over(now));
    }

    fn accept(&mut self, now: Instant) {
        if self.rests_until.is_some_and(|until| now < until) {
            return;
        }
        for _ in 0..ACCEPTS_MAX {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let fd = match accept_with(&self.socket, flags) {
                Ok(fd) => fd,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => {
                    warn!("cannot accept an operator's connection: {errno}");
                    self.rests_until = Some(now + REST);
                    return;
                }
            };
            let stream = UnixStream::from(fd);
            let mut operator = Operator {
                id: OperatorId(self.next_id),
                state: State::Asking,
                stream,
                input: Vec::new(),
                output: Vec::new(),
                deadline: Some(now + PATIENCE),
            };
            if !may_ask(&operator.stream) {
                let why = "only root and the user of the instance may ask";
                operator.answer(&Answer::Failed(why.into()), now);
            } else if !self.make_room(now) {
                operator.answer(&Answer::Failed("too many operators at once".into()), now);
            } else {
                self.next_id += 1;
                self.operators.push(operator);
            }
        }
    }

    /// Makes room for one more operator. Returns whether there is any.
    fn make_room(&mut self, now: Instant) -> bool {
        if self.operators.len() < CLIENTS_MAX {
            return true;
        }
        // Operators are in the order of their connections.
        let is_still = |operator: &Operator| operator.state != State::Waiting;
        let Some(at) = self.operators.iter().position(is_still) else { return false };
        let mut operator = self.operators.remove(at);
        if operator.state == State::Asking {
            operator.answer(&Answer::Failed("nothing was asked, and others want to".into()), now);
        }
        true
    }
}

impl Mailbox {
    fn push(&self, answer: Answer) {
        self.answers.borrow_mut().push((self.id, answer));
    }
}

impl Reply for Mailbox {
    fn line(&mut self, text: &str) {
        self.push(Answer::Say(text.into()));
    }

    fn status(&mut self, status: Status) {
        self.push(Answer::Status(Box::new(status)));
    }

    fn events(&mut self, events: Vec<EventRecord>) {
        self.push(Answer::Events(events));
    }

    fn done(self: Box<Self>) {
        self.push(Answer::Done(true));
    }

    fn unchanged(self: Box<Self>) {
        self.push(Answer::Done(false));
    }

    fn failed(self: Box<Self>, why: &str) {
        self.push(Answer::Failed(why.into()));
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.stream.as_ref().map(|stream| stream.as_fd())
    }

    fn is_awaited(&self) -> bool {
        // Where the descriptor could not be copied, nobody knows.
        self.stream.as_ref().is_none_or(|stream| !has_hung_up(stream))
    }
}

/// Whether the other end is closed, for reading as well.
fn has_hung_up(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let polled = poll(&mut fds, Some(&now));
    polled.is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

fn bind(path: &Path) -> Result<UnixSocket, BindError> {
    UnixSocket::bind(path, Some(0o600), BACKLOG)
}

/// Removes sockets of masters that were killed.
fn sweep(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let paths = entries.take(SWEEP_MAX).filter_map(|entry| Some(entry.ok()?.path()));
    let is_one = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "sock");
    paths.filter(is_one).for_each(|path| unix_socket::sweep(&path));
}

/// Creates the directory. Another user with write access could replace the socket.
fn make_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let metadata = fs::symlink_metadata(path)?;
    let is_ours =
        metadata.is_dir() && metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o022 == 0;
    if is_ours { Ok(()) } else { Err(io::Error::other("other users may write to the directory")) }
}

fn may_ask(stream: &UnixStream) -> bool {
    peer_user(stream).is_ok_and(|user| user == 0 || user == geteuid().as_raw())
}

/// The user at the other end.
fn peer_user(stream: &UnixStream) -> io::Result<u32> {
    Ok(getsockopt(stream, PeerCredentials)?.uid())
}

impl Operator {
    fn interest(&self) -> PollFlags {
        let read = if self.state == State::Asking { PollFlags::IN } else { PollFlags::empty() };
        let write = if self.output.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        read | write
    }

    fn is_over(&self, now: Instant) -> bool {
        match self.state {
            State::Gone => true,
            State::Answered if self.output.is_empty() => true,
            State::Asking | State::Waiting | State::Answered => {
                self.deadline.is_some_and(|deadline| deadline <= now)
            }
        }
    }

    fn handle(&mut self, now: Instant) -> Option<Command> {
        self.flush();
        if self.state != State::Asking {
            self.notice_hangup();
            return None;
        }
        let line = self.read_line()?;
        let read = if line.len() > COMMAND_SIZE_MAX {
            Err(format!(
                "the command has more than {COMMAND_SIZE_MAX} bytes: ask for less at a time"
            ))
        } else {
            serde_json::from_slice(&line).map_err(|error| format!("invalid command: {error}"))
        };
        match read {
            Ok(command) => {
                self.state = State::Waiting;
                self.deadline = None;
                Some(command)
            }
            Err(why) => {
                self.answer(&Answer::Failed(why), now);
                None
            }
        }
    }

    /// The first line, once it is complete, or more than a command may have. What follows it is ignored.
    fn read_line(&mut self) -> Option<Vec<u8>> {
        let mut buffer = [0; READ_SIZE];
        while self.input.len() <= COMMAND_SIZE_MAX {
            match self.stream.read(&mut buffer) {
                Ok(0) => {
                    self.state = State::Gone;
                    return None;
                }
                Ok(count) => {
                    let start = self.input.len();
                    self.input.extend_from_slice(&buffer[..count]);
                    if let Some(end) = buffer[..count].iter().position(|byte| *byte == b'\n') {
                        self.input.truncate(start + end);
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(_) => {
                    self.state = State::Gone;
                    return None;
                }
            }
        }
        Some(std::mem::take(&mut self.input))
    }

    /// poll(2) reports a hangup even if not asked to, and would do so again and again.
    fn notice_hangup(&mut self) {
        if has_hung_up(&self.stream) {
            self.state = State::Gone;
        }
    }

    fn answer(&mut self, answer: &Answer, now: Instant) {
        serde_json::to_writer(&mut self.output, answer).expect("answers are plain JSON");
        self.output.push(b'\n');
        if matches!(answer, Answer::Done(_) | Answer::Failed(_)) {
            self.state = State::Answered;
            self.deadline = Some(now + PATIENCE);
        }
        self.flush();
        if self.output.len() > OUTPUT_SIZE_MAX {
            warn!("an operator does not read its answer");
            self.state = State::Gone;
        }
    }

    fn flush(&mut self) {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    info!("an operator has left before the answer: {error}");
                    self.state = State::Gone;
                    self.output.clear();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::unix::net::UnixListener;

    use cashew_control::{KeysCarried, ToChild};

    use super::*;

    #[test]
    fn a_command_is_answered_line_by_line() {
        let mut world = World::new("answer");
        let mut operator = world.operator();
        assert_eq!(world.handle(), []);
        operator.write_all(b"{\"command\":\"reload\",").unwrap();
        assert_eq!(world.handle(), []);
        operator.write_all(b"\"dry_run\":true}\n").unwrap();
        let [(id, Command::Reload { dry_run: true })] = world.handle()[..] else { panic!() };
        let mut reply = world.socket.reply(id);
        reply.line("two\nlines");
        reply.status(Status { pid: 7, ..Status::default() });
        reply.done();
        world.socket.deliver(world.now);
        let answers = answers(operator);
        assert_eq!(answers[0], Answer::Say("two\nlines".into()));
        assert!(matches!(&answers[1], Answer::Status(status) if status.pid == 7));
        assert_eq!(answers[2..], [Answer::Done(true)]);
        assert!(world.socket.operators.is_empty());
    }

    #[test]
    fn commands_are_as_documented() {
        let parse = |text| serde_json::from_str::<Command>(text);
        let reload = |dry_run| Command::Reload { dry_run };
        assert_eq!(parse("{\"command\":\"reload\",\"dry_run\":false}").unwrap(), reload(false));
        assert_eq!(parse("{\"command\":\"reload\"}").unwrap(), reload(false));
        let upgrade = |binary: Option<&str>| Command::Upgrade { binary: binary.map(Into::into) };
        assert_eq!(parse("{\"command\":\"upgrade\",\"binary\":null}").unwrap(), upgrade(None));
        assert_eq!(
            parse("{\"command\":\"upgrade\",\"binary\":\"/b\"}").unwrap(),
            upgrade(Some("/b"))
        );
        assert_eq!(parse("{\"command\":\"status\"}").unwrap(), Command::Status);
        assert!(parse("{\"command\":\"reload\",\"dryrun\":true}").is_err());
        assert!(parse("{\"command\":\"resize\"}").is_err());
        assert_eq!(serde_json::to_string(&Answer::Done(true)).unwrap(), "{\"done\":true}");
    }

    #[test]
    fn invalid_and_long_lines_are_refused() {
        let mut world = World::new("nonsense");
        let long = "x".repeat(COMMAND_SIZE_MAX + 1);
        for (text, words) in [
            ("\n".to_owned(), "invalid command"),
            ("reload\n".into(), "invalid command"),
            (long.clone(), "the command has more than 49152 bytes"),
            (long + "\n", "the command has more than 49152 bytes"),
        ] {
            let mut operator = world.operator();
            operator.write_all(text.as_bytes()).unwrap();
            assert_eq!(world.handle(), []);
            let answers = answers(operator);
            assert!(
                matches!(&answers[..], [Answer::Failed(why)] if why.starts_with(words)),
                "{answers:?}"
            );
        }
    }

    #[test]
    fn the_longest_command_is_read_in_pieces() {
        let mut world = World::new("long");
        let command = |size| Command::MoveKeys {
            route: None,
            from: "a".into(),
            to: "b".into(),
            keys: vec!["k".repeat(size)],
            overwrite: false,
        };
        let bare = serde_json::to_vec(&command(0)).unwrap().len();
        let longest = command(COMMAND_SIZE_MAX - bare);
        let mut line = serde_json::to_vec(&longest).unwrap();
        line.push(b'\n');
        let mut operator = world.operator();
        let (before, rest) = line.split_at(COMMAND_SIZE_MAX / 2);
        operator.write_all(before).unwrap();
        assert_eq!(world.handle(), []);
        operator.write_all(rest).unwrap();
        let [(_, command)] = &world.handle()[..] else { panic!() };
        assert_eq!(*command, longest);
        // The process that copies gets the keys in one message.
        let Command::MoveKeys { from, to, keys, .. } = longest else { panic!() };
        let carried = KeysCarried { from, to, keys, may_overwrite: false };
        let message =
            ToChild::CatchUp { epoch: u64::MAX, directories: Vec::new(), keys: Some(carried) };
        let message = serde_json::to_vec(&message).unwrap();
        assert!(message.len() < cashew_control::MESSAGE_BYTES_MAX);
        let path = world.socket.path().to_owned();
        let too_long = Command::Upgrade { binary: Some("x".repeat(COMMAND_SIZE_MAX).into()) };
        assert!(matches!(ask(&path, &too_long, |_| {}), Err(AskError::TooLong)));
    }

    #[test]
    fn one_more_operator_replaces_an_idle_one() {
        let mut world = World::new("crowd");
        let mut crowd: Vec<_> = (0..CLIENTS_MAX).map(|_| world.operator()).collect();
        while world.socket.operators.len() < CLIENTS_MAX {
            world.handle();
        }
        // The first has sent a command, the second half of one, and the third does not read its
        // answer.
        crowd[0].write_all(b"{\"command\":\"status\"}\n").unwrap();
        crowd[1].write_all(b"{\"command\":").unwrap();
        crowd[2].write_all(b"{\"command\":\"status\"}\n").unwrap();
        let [(_, Command::Status), (deaf, Command::Status)] = world.handle()[..] else { panic!() };
        world.socket.reply(deaf).line(&"x".repeat(OUTPUT_SIZE_MAX / 2));
        world.socket.reply(deaf).done();
        world.socket.deliver(world.now);
        assert_eq!(world.socket.operators.len(), CLIENTS_MAX);
        for _ in 1..CLIENTS_MAX {
            let mut one_more = world.operator();
            one_more.write_all(b"{\"command\":\"status\"}\n").unwrap();
            let [(_, Command::Status)] = world.handle()[..] else { panic!() };
            crowd.push(one_more);
        }
        let parting = Answer::Failed("nothing was asked, and others want to".into());
        assert_eq!(answers(crowd.remove(1)), [parting]);
        // Now all of them wait for an answer.
        let late = world.operator();
        world.handle();
        let refused = Answer::Failed("too many operators at once".into());
        assert_eq!(answers(late), [refused]);
        assert_eq!(world.socket.operators.len(), CLIENTS_MAX);
        drop(crowd);
        world.handle();
        assert!(world.socket.operators.is_empty());
    }

    #[test]
    fn an_operator_that_sends_nothing_is_closed() {
        let mut world = World::new("silent");
        let operator = world.operator();
        world.handle();
        assert_eq!(world.socket.poll_timeout(), Some(world.now + PATIENCE));
        world.now += PATIENCE;
        world.handle();
        assert_eq!(answers(operator), []);
        assert_eq!(world.socket.poll_timeout(), None);
    }

    #[test]
    fn an_operator_that_has_left_is_not_polled() {
        let mut world = World::new("leaves");
        let mut operator = world.operator();
        operator.write_all(b"{\"command\":\"status\"}\n").unwrap();
        let [(id, Command::Status)] = world.handle()[..] else { panic!() };
        // As `echo … | socat` does.
        operator.shutdown(Shutdown::Write).unwrap();
        world.handle();
        assert_eq!(world.socket.operators.len(), 1);
        let reply = world.socket.reply(id);
        assert!(reply.is_awaited());
        drop(operator);
        assert!(!reply.is_awaited());
        world.handle();
        assert_eq!(world.socket.operators.len(), 0);
        reply.done();
        world.socket.deliver(world.now);
    }

    #[test]
    fn an_operator_that_does_not_read_delays_nobody() {
        let mut world = World::new("deaf");
        let mut operator = world.operator();
        operator.write_all(b"{\"command\":\"status\"}\n").unwrap();
        let [(id, _)] = world.handle()[..] else { panic!() };
        let text = "x".repeat(OUTPUT_SIZE_MAX / 2);
        for _ in 0..2 {
            world.socket.reply(id).line(&text);
            world.socket.deliver(world.now);
        }
        assert_eq!(world.socket.operators.len(), 1);
        world.socket.reply(id).line(&text);
        world.socket.deliver(world.now);
        assert_eq!(world.socket.operators.len(), 0);
    }

    #[test]
    fn a_command_gets_its_answer() {
        let mut world = World::new("ask");
        let path = world.socket.path().to_owned();
        let asking = std::thread::spawn(move || {
            let mut heard = Vec::new();
            ask(&path, &Command::Upgrade { binary: None }, |answer| heard.push(answer)).unwrap();
            heard
        });
        let id = loop {
            if let Some((id, command)) = world.handle().pop() {
                assert_eq!(command, Command::Upgrade { binary: None });
                break id;
            }
        };
        world.socket.reply(id).line("soon");
        world.socket.reply(id).failed("not today");
        world.socket.deliver(world.now);
        assert_eq!(
            asking.join().unwrap(),
            [Answer::Say("soon".into()), Answer::Failed("not today".into())]
        );
        let path = world.socket.path().to_owned();
        drop(world);
        let error = ask(&path, &Command::Status, |_| {}).unwrap_err();
        assert!(matches!(error, AskError::NotThere(_)), "{error}");
    }

    #[test]
    fn instances_are_found_by_their_file() {
        let directory = Directory::new("paths");
        let path = |text: &str| default_paths(&directory.0.join(text)).unwrap().remove(0);
        assert_eq!(path("a.yml"), path("./a.yml"));
        assert_ne!(path("a.yml"), path("b.yml"));
        assert!(path("a.yml").starts_with("/run/cashew"));
        assert_eq!(path("a.yml").to_str().unwrap().len(), "/run/cashew/".len() + 16 + 5);
        // The location of the file counts, not its content.
        std::os::unix::fs::symlink("b.yml", directory.0.join("link.yml")).unwrap();
        let before = path("link.yml");
        fs::write(directory.0.join("b.yml"), "").unwrap();
        assert_eq!(path("link.yml"), before);
        assert_ne!(path("link.yml"), path("b.yml"));
        std::os::unix::fs::symlink(".", directory.0.join("same")).unwrap();
        assert_eq!(path("same/a.yml"), path("a.yml"));
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let directory = Directory::new("theirs");
        let [open, ours] = ["open", "ours"].map(|name| directory.0.join(name));
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let paths = [open.join("s"), ours.join("s")];
        // One socket here is stale and one is live.
        fs::create_dir(&ours).unwrap();
        fs::set_permissions(&ours, fs::Permissions::from_mode(0o700)).unwrap();
        let [dead, alive] = ["dead.sock", "alive.sock"].map(|name| ours.join(name));
        drop(UnixListener::bind(&dead).unwrap());
        let _alive = UnixListener::bind(&alive).unwrap();
        let socket = ControlSocket::at_one_of(&paths).unwrap();
        assert_eq!(socket.path(), paths[1]);
        assert!(!dead.exists() && alive.exists());
        fs::remove_file(&alive).unwrap();
        let made = ControlSocket::at_one_of(&[directory.0.join("made/s")]).unwrap();
        let mode = fs::metadata(directory.0.join("made")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        drop(made);
        let error = ControlSocket::at_one_of(&paths).unwrap_err().to_string();
        assert!(error.contains("another process already listens there"), "{error}");
        drop(socket);
        assert!(!paths[1].exists());
        let error = ControlSocket::at_one_of(&paths[..1]).unwrap_err().to_string();
        assert!(error.ends_with("other users may write to the directory"), "{error}");
    }

    fn answers(operator: UnixStream) -> Vec<Answer> {
        let lines = BufReader::new(operator).lines();
        lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
    }

    struct World {
        socket: ControlSocket,
        now: Instant,
        _directory: Directory,
    }

    impl World {
        fn new(name: &str) -> Self {
            let directory = Directory::new(name);
            let socket = ControlSocket::at(&directory.0.join("socket")).unwrap();
            Self { socket, now: Instant::now(), _directory: directory }
        }

        fn operator(&self) -> UnixStream {
            UnixStream::connect(self.socket.path()).unwrap()
        }

        fn handle(&mut self) -> Vec<(OperatorId, Command)> {
            self.socket.handle(self.now)
        }
    }

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let id = std::process::id();
            let path = env::temp_dir().join(format!("cashew-operators-{id}-{name}"));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
