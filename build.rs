//! How the preloaded library is linked.

fn main() {
    // Its code stays in use as long as the process lives: exit handlers, thunks that callers hold.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtllmprof.so");
    println!("cargo:rerun-if-changed=build.rs");
}
