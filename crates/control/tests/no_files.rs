//! A process without a free descriptor. In its own file, since the limit is per process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use cashew_control::{ChildChannel, MasterChannel, ToChild, pair};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn a_message_arrives_even_if_its_descriptors_do_not() {
    let (master, worker) = pair().unwrap();
    let (master, mut worker) = (MasterChannel::new(master), ChildChannel::new(worker));
    let (reader, writer) = io::pipe().unwrap();
    let order = ToChild::Listen { listener: 1, pool: 2 };
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..before }).unwrap();
    let mut taken: Vec<OwnedFd> =
        std::iter::from_fn(|| fcntl_dupfd_cloexec(&reader, 0).ok()).collect();

    // With room for none, and for one of two.
    for _ in 0..2 {
        master.send(&order, &[reader.as_fd(), writer.as_fd()]).unwrap();
        let (message, descriptors) = worker.receive().unwrap().unwrap();
        assert_eq!((&message, descriptors.len()), (&order, 0));
        assert!(worker.is_stripped());
        taken.pop().unwrap();
    }
    // What is lost is not kept open.
    master.send(&order, &[reader.as_fd(), writer.as_fd()]).unwrap();
    let (message, descriptors) = worker.receive().unwrap().unwrap();
    assert_eq!((message, descriptors.len()), (order, 2));
    assert!(!worker.is_stripped());
    assert!(fcntl_dupfd_cloexec(&reader, 0).is_err(), "these are the last");
}
