//! The allocator's memory and the system's.
//!
//! What Rust cannot check here: an allocator that places blocks of the system's allocator, and two calls
//! of the C library, mallopt(3) and malloc_trim(3), which take plain numbers and may be called by any
//! thread at any time.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;

/// Bytes from which a buffer gets a mapping of its own, which ends when the buffer is freed, unless
/// the heap has room for it when it is made.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_MIN: i32 = 64 * 1024;

/// Buffers of at least so many bytes begin where [`SHIFT`] puts them.
const LARGE: usize = 64 * 1024;
/// A mapping of its own begins with 16 bytes of glibc's, so this is the middle of a page.
const SHIFT: usize = 2048 - 16;
/// What malloc(3) gives is aligned to this, and so is what lies [`SHIFT`] behind it.
const ALIGN: usize = 16;

/// The system's allocator, which places large buffers in the middle of a page.
///
/// They are what the kernel copies received bytes to, and what was sent to an idle connection it keeps
/// from the start of a page on. AMD's Zen 3 copies ten to twenty times as slowly (`rep movsb`, which Linux
/// uses wherever the processor claims that it is fast; `bench/copies.c`) if the target begins less than 32
/// bytes behind the source, both taken within their pages (glibc bug 30994): 16 behind is what malloc(3)
/// gives.
pub struct Allocator;

impl Allocator {
    fn is_shifted(layout: Layout) -> bool {
        layout.size() >= LARGE && layout.align() <= ALIGN
    }

    /// Room for the layout behind the shift, unless there is no such size.
    fn shifted(layout: Layout) -> Option<Layout> {
        Layout::from_size_align(layout.size().checked_add(SHIFT)?, ALIGN).ok()
    }

    /// Allocates by `allocate` what the layout needs.
    fn place(layout: Layout, allocate: impl FnOnce(Layout) -> *mut u8) -> *mut u8 {
        if !Self::is_shifted(layout) {
            return allocate(layout);
        }
        match Self::shifted(layout).map(allocate) {
            Some(base) if !base.is_null() => base.wrapping_add(SHIFT),
            _ => null_mut(),
        }
    }
}

// SAFETY: all memory is the system allocator's. Whether a block is shifted depends on nothing but its
// layout, which is the same when it is allocated, reallocated and freed; a shifted block has SHIFT bytes
// in front that belong to it, and is aligned as its layout asks, since SHIFT is a multiple of ALIGN.
unsafe impl GlobalAlloc for Allocator {
    // None of these belongs into the many places that allocate: a twentieth of the program would be that.
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout's size is not zero, as the caller promises, nor is one that is larger.
        Self::place(layout, |layout| unsafe { System.alloc(layout) })
    }

    #[inline(never)]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        Self::place(layout, |layout| unsafe { System.alloc_zeroed(layout) })
    }

    #[inline(never)]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let (base, whole) = match Self::shifted(layout) {
            Some(whole) if Self::is_shifted(layout) => (block.wrapping_sub(SHIFT), whole),
            _ => (block, layout),
        };
        // SAFETY: this is what was allocated for the layout, see `place`.
        unsafe { System.dealloc(base, whole) };
    }

    #[inline(never)]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Ok(new) = Layout::from_size_align(size, layout.align()) else { return null_mut() };
        match (Self::is_shifted(layout), Self::is_shifted(new)) {
            // SAFETY: as the caller promises.
            (false, false) => unsafe { System.realloc(block, layout, size) },
            (true, true) => {
                let whole = Self::shifted(layout).expect("it was allocated");
                Self::place(new, |new| {
                    // SAFETY: see `dealloc`.
                    unsafe { System.realloc(block.wrapping_sub(SHIFT), whole, new.size()) }
                })
            }
            _ => {
                // SAFETY: the size is not zero, as the caller promises.
                let moved = unsafe { self.alloc(new) };
                if !moved.is_null() {
                    // SAFETY: both have at least so many bytes and are apart; the old block is not used
                    // any more.
                    unsafe {
                        moved.copy_from_nonoverlapping(block, layout.size().min(size));
                        self.dealloc(block, layout);
                    }
                }
                moved
            }
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 1).expect("small enough")
    }

    fn bytes<'a>(block: *mut u8, len: usize) -> &'a mut [u8] {
        assert!(!block.is_null());
        // SAFETY: the tests ask for what they have allocated and not yet freed, and have written it.
        unsafe { std::slice::from_raw_parts_mut(block, len) }
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    #[cfg_attr(miri, ignore = "it does not place blocks as glibc does")]
    fn large_buffers_begin_in_the_middle_of_a_page() {
        map_large_buffers();
        for size in [4 << 20, 32 << 20] {
            // SAFETY: the size is not zero, and the block is freed with its layout.
            unsafe {
                let block = Allocator.alloc(layout(size));
                assert_eq!(block.addr() % 4096, 2048, "{size} bytes");
                Allocator.dealloc(block, layout(size));
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "it has no mallopt and no malloc_trim")]
    fn what_is_there_stays_as_it_is_whatever_the_system_is_told() {
        let sizes = [10, LARGE - 1, LARGE, 3 << 20];
        let blocks: Vec<Vec<u8>> = sizes.iter().map(|&size| vec![7; size]).collect();
        map_large_buffers();
        drop(vec![8_u8; 3 << 20]);
        trim();
        for (block, size) in blocks.iter().zip(sizes) {
            assert!(block.len() == size && block.iter().all(|&byte| byte == 7), "{size} bytes");
        }
    }

    #[test]
    fn what_grows_and_shrinks_keeps_its_bytes() {
        let sizes = [100, 5000, LARGE - 1, LARGE, 3 << 20, LARGE + 1, LARGE, LARGE - 1, 10];
        let mut size = 1;
        // SAFETY: no size is zero, and the block has the layout that it is told to have.
        unsafe {
            let mut block = Allocator.alloc_zeroed(layout(size));
            for next in sizes {
                let before: Vec<u8> = bytes(block, size).to_vec();
                block = Allocator.realloc(block, layout(size), next);
                let kept = size.min(next);
                let now = bytes(block, kept);
                assert_eq!(*now, before[..kept], "{size} to {next}");
                size = next;
                block.write_bytes(0, size);
                // Of a length that is no page: what has moved by pages is another.
                let pattern: Vec<u8> = (0..4099).map(|at| (at * 31 + size) as u8).collect();
                for piece in bytes(block, size).chunks_mut(pattern.len()) {
                    piece.copy_from_slice(&pattern[..piece.len()]);
                }
            }
            Allocator.dealloc(block, layout(size));
        }
    }

    #[test]
    fn zeroed_memory_is_zero_and_what_is_aligned_to_more_stays_so() {
        // SAFETY: no size is zero, and each block is freed with its layout.
        unsafe {
            for size in [1, LARGE - 1, LARGE, 1 << 20] {
                let block = Allocator.alloc_zeroed(layout(size));
                assert!(*bytes(block, size) == vec![0; size], "{size} bytes");
                Allocator.dealloc(block, layout(size));
            }
            let pages = Layout::from_size_align(LARGE, 4096).expect("small enough");
            let block = Allocator.alloc(pages);
            assert_eq!(block.addr() % 4096, 0);
            block.write_bytes(7, LARGE);
            let grown = Allocator.realloc(block, pages, 2 * LARGE);
            assert_eq!(grown.addr() % 4096, 0);
            assert!(*bytes(grown, LARGE) == [7; LARGE]);
            let pages = Layout::from_size_align(2 * LARGE, 4096).expect("small enough");
            Allocator.dealloc(grown, pages);
        }
    }

    #[test]
    fn what_is_too_much_is_refused() {
        let largest = layout(isize::MAX as usize - 100);
        // SAFETY: the size is not zero; nothing is allocated.
        assert!(unsafe { Allocator.alloc(largest) }.is_null());
    }
}
