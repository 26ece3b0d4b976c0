//! Keys that go to another pool by the list of keys of a route: who serves them, and when the list on disk says so.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use cashew_config::Snapshot;
use cashew_control::KeysCarried;
use cashew_metrics::EventKind;
use tracing::{error, info, warn};

use super::Master;
use crate::command::Reply;

/// Characters of a key that an event names.
const SHOWN_MAX: usize = 100;
/// Clients of both pools wait no longer for a step, whatever hangs.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(4);
/// Of that, for requests that are on their way.
pub(super) const DRAIN_MAX_MS: u64 = 2000;

/// Keys that go elsewhere.
pub(super) struct KeyWish {
    route: String,
    from: String,
    to: String,
    keys: Vec<String>,
    may_overwrite: bool,
    /// Who wants it says in the log what has become of it.
    is_of_hot_key: bool,
    /// Keys that have more bytes in memory stay.
    pub(super) size_max: Option<u64>,
    hindrance: Rc<RefCell<Hindrance>>,
}

/// What has kept keys from going.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Hindrance {
    /// That is of these keys alone, and nobody has waited for it.
    #[default]
    Key,
    /// A server of that pool does not answer, and nobody has waited for it.
    Pool(String),
    /// Clients have waited for it.
    Step,
}

impl KeyWish {
    pub(super) fn new(
        (from, to): (String, String),
        keys: Vec<String>,
        may_overwrite: bool,
    ) -> Self {
        let (route, hindrance) = (String::new(), Rc::default());
        let (is_of_hot_key, size_max) = (false, None);
        Self { route, from, to, keys, may_overwrite, is_of_hot_key, size_max, hindrance }
    }

    pub(super) fn of_hot_key(self, route: String, size_max: Option<u64>) -> Self {
        Self { route, is_of_hot_key: true, size_max, ..self }
    }

    /// What has kept it from being done, once it has failed.
    pub(super) fn hindrance(&self) -> Rc<RefCell<Hindrance>> {
        Rc::clone(&self.hindrance)
    }

    pub(super) fn is_hindered_by(&self, what: Hindrance) {
        *self.hindrance.borrow_mut() = what;
    }

    /// What would have to be carried. `None` if that is nothing, or the wish cannot be done.
    pub(super) fn foreseen(&self, snapshot: &Snapshot) -> Option<KeysCarried> {
        let Self { route, from, to, keys, may_overwrite, .. } = self;
        let led = snapshot.clone().lead_keys(route, keys, (from, to)).ok()?;
        let (from, to) = (from.clone(), to.clone());
        let carried = KeysCarried { from, to, keys: led.keys, may_overwrite: *may_overwrite };
        (!carried.keys.is_empty()).then_some(carried)
    }

    pub(super) fn say_refused(&self, why: &str) {
        let Self { route, from, keys, .. } = self;
        if !self.is_of_hot_key {
            let count = keys.len();
            warn!(pool = route, "route {route}: {count} keys stay in pool {from}: {why}");
        }
    }
}

/// The step that is under way, if there is one.
#[derive(Default)]
pub(super) struct KeyMoves {
    step: Option<Step>,
}

struct Step {
    route: String,
    carried: KeysCarried,
    /// The list of keys.
    file: PathBuf,
    /// That which is to take its place.
    next: PathBuf,
}

impl KeyMoves {
    /// Puts it into a snapshot, and the next list beside the one in effect. `false` if nothing is left to do.
    pub(super) fn begin(
        &mut self,
        wish: &KeyWish,
        snapshot: &mut Snapshot,
    ) -> Result<bool, String> {
        let KeyWish { route, from, to, keys, may_overwrite, .. } = wish;
        let led = snapshot.lead_keys(route, keys, (from, to))?;
        if led.keys.is_empty() {
            return Ok(false);
        }
        // A link stays one.
        let describe = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
        let file = led.file.canonicalize().map_err(|error| describe(&led.file, error))?;
        let mut next = file.clone().into_os_string();
        next.push(".next");
        let next = PathBuf::from(next);
        put(&next, &led.text, &file).map_err(|error| describe(&next, error))?;
        let (from, to) = (from.clone(), to.clone());
        let carried = KeysCarried { from, to, keys: led.keys, may_overwrite: *may_overwrite };
        self.step = Some(Step { route: route.clone(), carried, file, next });
        Ok(true)
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.step.is_some()
    }

    pub(super) fn carried(&self) -> Option<KeysCarried> {
        self.step.as_ref().map(|step| step.carried.clone())
    }

    /// The keys are in both pools, and nobody writes: from here on the list says where they are.
    pub(super) fn decide(&self) -> Result<(), String> {
        let Some(Step { file, next, .. }) = &self.step else { return Ok(()) };
        let directory = file.parent().unwrap_or(Path::new("/"));
        let outcome = fs::rename(next, file).and_then(|()| File::open(directory)?.sync_all());
        outcome.map_err(|error| format!("{}: {error}", file.display()))
    }

    pub(super) fn call_off(&mut self) {
        if let Some(Step { next, .. }) = self.step.take()
            && let Err(error) = fs::remove_file(&next)
            && error.kind() != io::ErrorKind::NotFound
        {
            error!("{}: {error}", next.display());
        }
    }

    /// The epoch is in effect.
    pub(super) fn done(&mut self) {
        if let Some(Step { route, carried, .. }) = self.step.take() {
            let KeysCarried { from, to, keys, .. } = &carried;
            let first = keys.first().map_or("", |key| key);
            let shown: String = first.chars().take(SHOWN_MAX).collect();
            info!(
                kind = EventKind::KeysMoved.name(),
                pool = route,
                "route {route}: {} keys go to pool {to} instead of pool {from}, such as \"{shown}\"",
                keys.len()
            );
        }
    }
}

/// Writes a file as another one may be read.
fn put(path: &Path, text: &str, like: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.set_permissions(fs::metadata(like)?.permissions())?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

impl Master {
    pub(super) fn move_keys(
        &mut self,
        route: Option<String>,
        mut wish: KeyWish,
        reply: Box<dyn Reply>,
    ) {
        let routes = self.current.snapshot.key_routes();
        wish.route = match (route, &routes[..]) {
            (Some(route), _) => route,
            (None, [route]) => (*route).to_owned(),
            (None, []) => {
                return reply.failed(
                    "no route lists keys in a file: its first node has to be `keys` with a `file`",
                );
            }
            (None, several) => {
                let names = several.join(", ");
                return reply.failed(&format!("several routes list keys: name one of {names}"));
            }
        };
        self.want_keys(wish, reply);
    }
}

#[cfg(test)]
mod tests {
    use cashew_config::Context;

    use super::*;

    #[test]
    fn the_list_changes_when_it_is_decided_and_not_before() {
        let directory = std::env::temp_dir().join(format!("cashew-keys-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("keys");
        fs::write(&file, "# kept\n").unwrap();
        let text = format!(
            "pools:\n  a: {{redis: true, servers: [127.0.0.1:1:1]}}\n  b: {{redis: true, servers: [127.0.0.1:2:1]}}\n\
             routes:\n  main: {{listen: 127.0.0.1:22121, redis: true, route: {{keys: {{file: {}}}, else: a}}}}\n",
            file.display()
        );
        let mut snapshot =
            cashew_config::parse("f", &text, &Context::of_system()).unwrap().snapshot;
        assert_eq!(snapshot.key_routes(), ["main"]);
        let wish = |from: &str, to: &str| KeyWish {
            route: "main".to_owned(),
            ..KeyWish::new((from.to_owned(), to.to_owned()), vec!["k".to_owned()], false)
        };
        let mut moves = KeyMoves::default();
        assert_eq!(moves.begin(&wish("a", "b"), &mut snapshot.clone()), Ok(true));
        moves.call_off();
        assert!(!moves.is_under_way() && fs::read_dir(&directory).unwrap().count() == 1);
        assert_eq!(moves.begin(&wish("a", "b"), &mut snapshot), Ok(true));
        assert_eq!(fs::read_to_string(&file).unwrap(), "# kept\n");
        moves.decide().unwrap();
        moves.done();
        assert_eq!(fs::read_to_string(&file).unwrap(), "# kept\nk b\n");
        assert_eq!(moves.begin(&wish("a", "b"), &mut snapshot), Ok(false));
        assert_eq!(moves.begin(&wish("b", "a"), &mut snapshot), Ok(true));
        moves.decide().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "# kept\n");
        fs::remove_dir_all(&directory).unwrap();
    }
}
