//! Checks hosts of CPython, in a few versions, or in a nightly run in every one that the machine has. With
//! all options for Python, each does the same as without the library, and the events inside are seen to the
//! last collection.

mod common;

mod python_hosts {
    mod host;
    mod own_tests;

    mod edges;
    mod embedded;
    mod programs;
}
