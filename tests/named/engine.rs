//! A Rust program with a method that is named in the step rule of a test.

#[link(name = "libcudart.so.12", kind = "dylib", modifiers = "+verbatim")]
unsafe extern "C" {
    fn cudaSetDevice(device: i32) -> i32;
    fn cudaDeviceSynchronize() -> i32;
}

mod serving {
    pub struct Engine<T>(pub T);

    impl<T: Copy + Into<u64>> Engine<T> {
        #[inline(never)]
        pub fn decode(&mut self, n: u64) -> (u64, u64) {
            let own: u64 = self.0.into();
            (own.wrapping_mul(31).wrapping_add(std::hint::black_box(n)), n ^ own)
        }
    }
}

fn main() {
    let mut engine = serving::Engine(7_u32);
    let mut sum = 0_u64;
    // SAFETY: these functions take no pointers.
    unsafe { assert_eq!(cudaSetDevice(0) + cudaDeviceSynchronize(), 0) };
    for n in 0..300 {
        let (a, b) = engine.decode(n);
        sum = sum.wrapping_mul(3).wrapping_add(a ^ b);
    }
    println!("sum {sum} calls 300");
}
