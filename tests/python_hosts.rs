//! Checks programs that host CPython, in a few versions, or in all versions of the machine in a nightly run. With all
//! of the library's Python options, each program does the same as without the library. The library sees all Python
//! events of the program, including the last garbage collection.

mod common;

mod python_hosts {
    mod host;
    mod own_tests;

    mod edges;
    mod embedded;
    mod programs;
}
