//! Hosts of CPython, in a few versions and nightly in every one that the machine has: each does the same with everything
//! on that can be asked for of Python as it does without the library, and what happened inside is seen to the last
//! collection.

mod common;

mod python_hosts {
    mod host;
    mod own_tests;

    mod edges;
    mod embedded;
    mod programs;
}
