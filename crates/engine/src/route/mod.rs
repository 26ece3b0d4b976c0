//! Routes: where requests go that are not for the servers of one pool.
//!
//! A route is a listener without servers of its own. Its [tree](crate::topology::route_tree) says which
//! backends a key's requests go to. Where that is one, as they are, the client *stands* at that backend while
//! the request is dispatched, and all that is below goes on as for a pool. Where it is several, or the request
//! is changed, a flow asks the tree's leaves and makes one reply of theirs.

pub(crate) mod answer;
pub(crate) mod cache;
pub(crate) mod copies;
pub(crate) mod explain;
pub(crate) mod flow;
mod node;
pub(crate) mod stand;
