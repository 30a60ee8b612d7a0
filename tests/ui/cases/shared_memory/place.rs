//! Memory of kernels is bound without a lifetime, which takes a promise.

use autobwd_core::__private::Memory;

fn main() {
    let memory = Memory::zeroed(4096).unwrap();
    let place = memory.place(0, 4096).unwrap();
    drop(memory);
    println!("{place:?}");
}
