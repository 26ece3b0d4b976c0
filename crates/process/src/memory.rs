//! The allocator's memory and the system's.
//!
//! The only calls of the C library that Rust cannot check here: mallopt(3) and malloc_trim(3) take
//! plain numbers and may be called by any thread at any time.
#![allow(unsafe_code)]

/// Bytes from which a buffer gets a mapping of its own, which ends when the buffer is freed, unless
/// the heap has room for it when it is made.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_MIN: i32 = 64 * 1024;

/// Keeps glibc from raising the size from which it maps memory for a buffer of its own with every
/// large buffer that is freed: later ones would lie on its heap, which does not shrink while
/// anything small lies above them. For the start of a process; what the operator chose by
/// `MALLOC_MMAP_THRESHOLD_` stays.
pub fn map_large_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if std::env::var_os("MALLOC_MMAP_THRESHOLD_").is_none() {
        // SAFETY: it takes two numbers and is thread-safe.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_MIN) };
    }
}

/// Gives freed memory back to the system wherever it lies on the heap, which takes about a
/// microsecond for each free page run: for after a peak, not in the middle of one.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes a number and is thread-safe.
    unsafe {
        libc::malloc_trim(0)
    };
}
