//! How much memory a piece of code held at most, counted at the allocator of this test program.
//!
//! By thread, so that tests beside it do not count.

#![expect(unsafe_code, reason = "the allocator's interface; each call goes to the system's unchanged")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

pub(crate) struct Counted;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

fn took(bytes: usize) {
    // A thread that ends has no counters any more, and nobody asks for them.
    let _ = HELD.try_with(|held| {
        held.set(held.get().saturating_add(bytes));
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

fn gave(bytes: usize) {
    let _ = HELD.try_with(|held| held.set(held.get().saturating_sub(bytes)));
}

// SAFETY: every call is the system allocator's own, with what it was given.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        gave(layout.size());
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        took(size);
        gave(layout.size());
        unsafe { System.realloc(at, layout, size) }
    }
}

/// The most bytes that `work` held at once, beyond those that were held before.
pub(crate) fn most(work: impl FnOnce()) -> usize {
    let before = HELD.with(Cell::get);
    MOST.with(|most| most.set(before));
    work();
    MOST.with(Cell::get).saturating_sub(before)
}

#[test]
fn what_is_held_is_counted() {
    let held = most(|| drop(std::hint::black_box(vec![1_u8; 1 << 20])));
    assert!((1 << 20..2 << 20).contains(&held), "{held}");
    assert!(most(|| drop(std::hint::black_box(Vec::<u8>::with_capacity(64 << 20)))) >= 64 << 20);
}
