//! Linker arguments of the preloaded library, `libtllmprof.so`.

fn main() {
    // `nodelete` keeps the library loaded until the process ends. Exit handlers, and function pointers that the
    // library has given to the program, point into its code.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtllmprof.so");
    println!("cargo:rerun-if-changed=build.rs");
}
