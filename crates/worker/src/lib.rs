//! The worker: one thread that moves bytes through the engine and follows the master's orders.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

mod affinity;
mod clock;
mod core;
mod pace;
mod pauses;
mod place;
mod preparer;
mod resolver;
mod secured;
mod sessions;
mod start;
mod worker;

use std::os::fd::OwnedFd;

use cashew_config::snapshot::IoEngine;
use cashew_control::ChildChannel;
use cashew_driver::{Driver, EpollDriver, Refusal, Secured, UringDriver};
use cashew_engine::DriverMemory;

use crate::start::Start;

pub use start::Error;

/// Runs a worker until the master stops it or dies. All input comes through `control`.
///
/// # Errors
/// If it cannot begin to serve. The error is reported to the master as well.
pub fn run(control: OwnedFd) -> Result<(), Error> {
    let (start, mut control) = start::receive(control)?;
    if let Some(driver) = uring(start.snapshot.global.io_engine, start.rank, UringDriver::new) {
        return serve(start, driver, control);
    }
    match EpollDriver::new() {
        Ok(driver) => serve(start, driver, control),
        Err(error) => {
            let error = Error::Io(error);
            start::report_failure(&mut control, &error);
            Err(error)
        }
    }
}

/// The most memory that a worker's driver uses. It uses less where the kernel refuses io_uring.
pub fn driver_memory(engine: IoEngine) -> DriverMemory {
    match engine {
        IoEngine::Auto | IoEngine::Epoll => {
            DriverMemory { size: 0, late: Secured::<EpollDriver>::LATE_MAX }
        }
        IoEngine::Uring => {
            DriverMemory { size: UringDriver::SIZE_MAX, late: Secured::<UringDriver>::LATE_MAX }
        }
    }
}

/// The io_uring driver, if it is configured and the kernel allows it. Only one worker logs a
/// refusal.
fn uring<D>(engine: IoEngine, rank: u32, new: impl FnOnce() -> Result<D, Refusal>) -> Option<D> {
    match engine {
        IoEngine::Auto | IoEngine::Epoll => None,
        IoEngine::Uring => match new() {
            Ok(driver) => Some(driver),
            Err(refusal) => {
                if rank == 0 {
                    tracing::warn!("io_engine: using epoll: {refusal}");
                }
                None
            }
        },
    }
}

fn serve(start: Start, driver: impl Driver, mut control: ChildChannel) -> Result<(), Error> {
    match worker::Worker::new(start, driver) {
        Ok(worker) => worker.run(control),
        Err(error) => {
            start::report_failure(&mut control, &error);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_io_uring_is_no_failure() {
        for rank in 0..2 {
            assert_eq!(uring::<()>(IoEngine::Uring, rank, || Err(Refusal::Forbidden)), None);
            assert_eq!(uring(IoEngine::Uring, rank, || Ok(rank)), Some(rank));
        }
    }

    #[test]
    fn io_uring_is_used_only_if_it_is_asked_for() {
        for engine in [IoEngine::Auto, IoEngine::Epoll] {
            assert_eq!(uring(engine, 0, || Ok(())), None);
        }
    }
}
