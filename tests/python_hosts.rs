//! Checks programs that run Python code, as `python` or with an embedded interpreter. With all of the library's Python
//! options, each program must do the same as without the library, and the library must see all Python events, including
//! the last garbage collection.
//!
//! The tests use a few of the available CPythons. With `TLLMPROF_TEST_PYTHONS=all`, they use all of them.

mod common;

mod python_hosts {
    mod host;
    mod own_tests;

    mod edges;
    mod embedded;
    mod programs;
}
