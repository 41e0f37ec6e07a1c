//! Tests the library's wrapper around Python objects in each version of CPython.

use core::ffi::CStr;

use super::hosted::{Host, in_each};
use crate::object::{Exception, Held, Ints, Object, Python};

#[test]
fn what_outlives_the_gil_may_go_to_another_thread() {
    const fn may_be_sent<T: Send>() {}
    may_be_sent::<Exception>();
    may_be_sent::<Held>();
    assert!(!Held::none().is_some());
    assert_eq!(Held::none().addr(), 0);
}

/// Runs the program `source`, and calls `act` with its global names.
fn with_names(host: &Host, source: &CStr, act: impl for<'py> FnOnce(Python<'py>, Object<'py>)) {
    host.with(|py| act(py, py.run(source, c"<test>").expect("the program runs")));
}

#[test]
fn numbers_in_a_list_are_told_from_0_where_they_lie() {
    in_each(&[], |host| {
        with_names(
            host,
            c"import sysconfig
class Own(int): pass
has_gil = not sysconfig.get_config_var('Py_GIL_DISABLED')
most = [0, 5, -1, 256, 257, 10 ** 9, 10 ** 18, -10 ** 25]
mixed = [1, True, 2, Own(0), 3, 0, 'a', None]
pair = (1, 0)",
            |py, program| {
                let of = |name| program.item(name).unwrap();
                let ints = Ints::detect(py);
                assert_eq!(ints.is_some(), of(c"has_gil").is_true());
                let Some(ints) = ints else { return };
                let most = of(c"most");
                let mut found = (0..9).map(|index| ints.is_zero(&most, index));
                assert_eq!(found.next(), Some(Some(true)));
                assert!(found.by_ref().take(7).all(|is_zero| is_zero == Some(false)));
                assert_eq!(found.next(), Some(None), "there is no more");
                assert_eq!(ints.skip_others(&most, 0, 8), 0);
                assert_eq!(ints.skip_others(&most, 1, 8), 8);
                // `skip_others` stops at each object that is not a plain int, because its caller
                // has to examine such objects itself.
                let mixed = of(c"mixed");
                let stops = (0..8).filter(|&index| ints.skip_others(&mixed, index, 8) == index);
                assert_eq!(stops.collect::<Vec<_>>(), [1, 3, 5, 6, 7]);
                assert_eq!(ints.is_zero(&of(c"pair"), 1), None);
                ints.release(py);
            },
        );
    });
}

#[test]
fn objects_are_read_without_an_exception_left() {
    in_each(&[], |host| {
        with_names(
            host,
            c"number, text, none, pair = 7, 'läuft', None, (1, 'two')
names = {'a': 1, 2: 3}
words = []
def raises(): raise ValueError('x')
def adds(a, b): return a + b
class Base: limit = 5
class Derived(Base):
    def __init__(self): self.own = 1
one = Derived()
huge = 1 << 80",
            |py, program| {
                let of = |name| program.item(name).unwrap();
                assert_eq!(of(c"number").as_int(), Some(7));
                assert_eq!(of(c"huge").as_int(), None);
                assert_eq!(of(c"text").as_int(), None);
                assert_eq!(of(c"text").as_text(), Some("läuft"));
                assert_eq!(of(c"number").as_text(), None);
                assert!(of(c"none").is_none() && !of(c"none").is_true());
                assert!(of(c"one").is_true() && !of(c"words").is_true());
                let pair: Vec<_> = of(c"pair").elements().collect();
                assert_eq!(pair.len(), 2);
                assert_eq!(pair[1].as_text(), Some("two"));
                assert_eq!(of(c"pair").at(0).unwrap().as_int(), Some(1));
                assert!(of(c"pair").at(2).is_none());
                assert_eq!(of(c"number").elements().count(), 0);

                let names = of(c"names");
                let mut keys = Vec::new();
                names.each_key(|key| keys.push(key.to_owned()));
                assert_eq!(keys, ["a"]);
                assert!(names.item(c"b").is_none() && of(c"number").item(c"a").is_none());
                assert!(names.set_item(c"b", &of(c"number")));
                assert_eq!(names.item(c"b").unwrap().as_int(), Some(7));
                assert!(!of(c"number").set_item(c"b", &names));
                assert_eq!(names.values().unwrap().elements().count(), 3);
                assert!(of(c"words").append(&names) && !names.append(&names));

                let (one, derived) = (of(c"one"), of(c"Derived"));
                assert!(derived.is_class() && !one.is_class());
                assert_eq!(derived.class_attr("limit").unwrap().as_int(), Some(5));
                assert!(derived.class_attr("none").is_none());
                assert!(one.class_attr("limit").is_none());
                assert!(derived.own_attrs().is_none());
                let own = one.own_attrs().unwrap();
                assert_eq!(own.item(c"own").unwrap().as_int(), Some(1));
                assert!(one.attr(c"limit").is_some() && one.attr(c"other").is_none());
                assert_eq!(one.kind(), derived.raw());

                let adds = of(c"adds");
                assert!(adds.code().unwrap().is_code() && !adds.is_code());
                let (two, three) = (py.int(2).unwrap(), py.int(3).unwrap());
                let sum = adds.call(&[&two, &three]).unwrap();
                assert_eq!(sum.as_int(), Some(5));
                assert!(adds.call(&[&two]).is_none());
                assert!(of(c"raises").call(&[]).is_none());
                assert!(!py.has_raised());
                let Err(raised) = of(c"raises").try_call(&[]) else {
                    panic!("it raises");
                };
                py.raise(raised);
                assert!(py.quietly(|py| !py.has_raised() && py.import(c"nowhere").is_none()));
                assert!(py.has_raised() && py.raised() && !py.has_raised());
            },
        );
    });
}

#[test]
fn modules_and_references_are_had_for_as_long_as_they_are_held() {
    in_each(&[], |host| {
        host.with(|py| {
            assert_eq!(py.interpreter(), 0);
            assert_ne!(py.interpreter_address(), 0);
            assert!(py.sys(c"stdout").is_some() && py.sys(c"nothing").is_none());
            // `import_unseen` removes a module from `sys.modules` again if the module was not imported before. Other
            // modules stay there.
            assert!(py.imported(c"colorsys").is_none());
            assert!(py.import_unseen(c"colorsys").is_some());
            assert!(py.imported(c"colorsys").is_none());
            assert!(py.import_unseen(c"sys").is_some() && py.imported(c"sys").is_some());
            assert!(py.run(c"syntax error", c"<test>").is_none());
            let names = py
                .run_as_module(c"made", c"answer = 42", c"<test>")
                .unwrap();
            assert_eq!(names.item(c"answer").unwrap().as_int(), Some(42));
            assert!(py.imported(c"made").is_some());

            let held = Held::none();
            held.set(py.text("kept").unwrap());
            assert!(held.is_some());
            assert_eq!(held.get(py).unwrap().as_text(), Some("kept"));
            let taken = held.take(py).unwrap();
            assert!(held.get(py).is_none() && held.take(py).is_none());
            held.set(taken.clone());
            assert_eq!(held.addr(), taken.addr());
            held.forget();
            assert!(!held.is_some());
            assert!(py.nothing().is_none());
            assert!(py.frame().is_none());
            assert_eq!(py.without_gil(|| 3), 3);
            assert!(!crate::closing::without_gil(py, crate::entry::has_gil));
        });
        assert!(!host.without_gil(crate::entry::has_gil) && crate::entry::has_gil());
    });
}
