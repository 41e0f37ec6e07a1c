//! Reads objects of the program without running any of its code: plain attributes of an object or
//! of its class, slots, elements of lists, tuples and dictionaries, integers and texts.
//!
//! Properties and other computed attributes are not read, and no `__getattr__` is called. The only
//! exception is the shape of a `torch.Tensor`. C++ code computes it, without waiting for the GPU.
//! The shape is not read while a torch function mode is active, because code of the mode would run.

use crate::object::{AttributeName, Ints, Object};

/// The reason why a value of the program was not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    NoArgument,
    NoAttribute,
    Computed,
    NoItem,
    /// `NoList` and the next three variants: the object has another type than the formula requires.
    NoList,
    NoDictionary,
    NoNumber,
    NoText,
    TooMany,
    NoBatch,
}

impl Refused {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::NoArgument => "an argument is missing",
            Self::NoAttribute => "an attribute is missing",
            Self::Computed => "an attribute is computed, and code of the program is not run",
            Self::NoItem => "an item is missing",
            Self::NoList => "a value is not a list",
            Self::NoDictionary => "a value is not a dictionary by texts or numbers",
            Self::NoNumber => "a value is not a whole number",
            Self::NoText => "a value is not a text",
            Self::TooMany => "it has more than 4096 requests",
            Self::NoBatch => "its numbers are none of a batch",
        }
    }
}

/// The largest number of list elements that are read for the batch of one step.
pub(crate) const MAX_ELEMENTS: usize = 4096;

/// Reads `object.name`, unless it is a computed attribute other than the shape of a tensor. `text` is the same name as
/// a Rust text. `get` is the name `__get__`, by which computed attributes are recognized.
#[inline(never)]
pub(crate) fn attribute<'py>(
    object: &Object<'py>,
    name: &AttributeName,
    text: &str,
    get: &AttributeName,
) -> Result<Object<'py>, Refused> {
    if let Some(of_class) = object.attr_of_class(name) {
        let types = &object.py().api.types;
        let kind = of_class.kind();
        let is_plain = kind == types.member || of_class.attr_of_class(get).is_none();
        let is_shape =
            || kind == types.computed && text == "shape" && is_tensor(object) && !has_modes(object);
        if !is_plain && !is_shape() {
            return Err(Refused::Computed);
        }
    }
    object.generic_attr(name).ok_or(Refused::NoAttribute)
}

#[cold]
fn is_tensor(object: &Object<'_>) -> bool {
    let tensor = || object.py().imported(c"torch")?.own_attrs()?.item(c"Tensor");
    tensor().is_some_and(|tensor| tensor.raw() == object.kind())
}

/// Returns true if a `TorchFunctionMode` of the program may be active. Its code would run at each
/// access to an attribute of a tensor.
#[cold]
fn has_modes(object: &Object<'_>) -> bool {
    let modes = || {
        let torch = object.py().imported(c"torch._C")?.own_attrs()?;
        torch
            .item(c"_len_torch_function_stack")?
            .call(&[])?
            .as_int()
    };
    modes() != Some(0)
}

/// A list or tuple. Its type is checked once, when this value is created.
pub(crate) struct Elements<'py> {
    object: Object<'py>,
    kind: ContainerKind,
}

enum ContainerKind {
    List,
    Tuple,
    Other,
}

impl<'py> Elements<'py> {
    #[inline(never)]
    pub(crate) fn new(object: Object<'py>) -> Self {
        let kind = if object.kind() == object.py().api.types.list {
            ContainerKind::List
        } else if object.is_tuple() {
            ContainerKind::Tuple
        } else {
            ContainerKind::Other
        };
        Self { object, kind }
    }

    /// Returns the element `object[index]`.
    pub(crate) fn at(&self, index: isize) -> Result<Object<'py>, Refused> {
        let found = match self.kind {
            ContainerKind::List => self.object.at(index),
            ContainerKind::Tuple => self.object.py().c().tuple_get(&self.object, index),
            ContainerKind::Other => return Err(Refused::NoList),
        };
        found.ok_or(Refused::NoItem)
    }

    /// Returns the first index in `from..to` whose element is 0 or not exactly an int. Returns `to` if there is none.
    /// Only lists are searched; for a tuple, returns `from`.
    pub(crate) fn skip_others(&self, from: isize, to: isize, ints: &Ints) -> isize {
        match self.kind {
            ContainerKind::List => ints
                .skip_others(&self.object, from.cast_unsigned(), to.cast_unsigned())
                .cast_signed(),
            ContainerKind::Tuple | ContainerKind::Other => from,
        }
    }
}

/// Returns `object[key]` for a dictionary, with a str or an int as key.
#[inline(never)]
pub(crate) fn item<'py>(object: &Object<'py>, key: &Object<'py>) -> Result<Object<'py>, Refused> {
    let types = &object.py().api.types;
    let kind = key.kind();
    // A comparison with a key of another type could run code of the program.
    if object.kind() != types.dict || kind != types.text && kind != types.integer {
        return Err(Refused::NoDictionary);
    }
    object.find(key).ok_or(Refused::NoItem)
}

/// Returns `len(object)` for a list, tuple, dictionary or set, and 0 for None.
#[inline(never)]
pub(crate) fn length(object: &Object<'_>) -> Result<isize, Refused> {
    let types = &object.py().api.types;
    let kind = object.kind();
    if object.is_none() {
        return Ok(0);
    }
    if ![types.list, types.tuple, types.dict, types.set].contains(&kind) {
        return Err(Refused::NoList);
    }
    Ok(object.py().c().size(object))
}

/// Returns the value of an integer, which may be an enum or a bool.
#[inline(never)]
pub(crate) fn number(object: &Object<'_>) -> Result<i64, Refused> {
    if object.kind() != object.py().api.types.integer && !object.is_integer() {
        return Err(Refused::NoNumber);
    }
    object.as_int().ok_or(Refused::NoNumber)
}
