//! The worker: one thread that moves bytes through the engine, and obeys the master.
#![forbid(unsafe_code)]

mod clock;
mod core;
mod pace;
mod resolver;
mod start;
mod worker;

use std::os::fd::OwnedFd;

use cashew_driver::EpollDriver;

pub use start::Error;

/// Runs a worker until the master stops it, or dies. Everything it needs to know comes through
/// `control`.
///
/// # Errors
/// When it cannot begin to serve; the master has been told why.
pub fn run(control: OwnedFd) -> Result<(), Error> {
    let (start, mut control) = start::receive(control)?;
    let driver = EpollDriver::new().map_err(Error::Io);
    let worker = driver.and_then(|driver| worker::Worker::new(start, driver));
    match worker {
        Ok(worker) => worker.run(control),
        Err(error) => {
            start::report_failure(&mut control, &error);
            Err(error)
        }
    }
}
