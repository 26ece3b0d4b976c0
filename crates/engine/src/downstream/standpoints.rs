//! Where clients of routes stand: at the backend that the request at hand goes to.

use crate::base::id::{BackendId, ClientId};

/// By client. Beside the clients, since without routes it is empty.
#[derive(Default)]
pub(crate) struct Standpoints(Vec<BackendId>);

impl Standpoints {
    /// `None` where nothing without a key goes elsewhere.
    #[inline]
    pub(crate) fn of(&self, client: ClientId) -> Option<BackendId> {
        self.0.get(client.index()).copied().filter(|&backend| backend != BackendId::NONE)
    }

    #[inline]
    pub(crate) fn set(&mut self, client: ClientId, backend: BackendId) {
        if self.0.len() <= client.index() {
            self.0.resize(client.index() + 1, BackendId::NONE);
        }
        self.0[client.index()] = backend;
    }

    /// Another client has the number.
    #[inline]
    pub(crate) fn forget(&mut self, client: ClientId) {
        if let Some(backend) = self.0.get_mut(client.index()) {
            *backend = BackendId::NONE;
        }
    }

    /// Backends have other numbers; those that have none are nowhere.
    pub(crate) fn renumber(&mut self, place: impl Fn(BackendId) -> Option<BackendId>) {
        for backend in self.0.iter_mut().filter(|backend| **backend != BackendId::NONE) {
            *backend = place(*backend).unwrap_or(BackendId::NONE);
        }
    }
}
