//! Evaluates an engine's formulas for the batch (requests and tokens) of a step.

use tllmprof_config::ComparisonOperator;
use tllmprof_config::formula::{ARGUMENTS, Node, SumExpression, VARIABLES};

use super::Way;
use super::plain::{self, Elements, MAX_ELEMENTS, Refused};
use crate::object::{Ints, Object, Python};

/// The state during the evaluation of the formulas for one batch.
pub(super) struct BatchReading<'a, 'py> {
    py: Python<'py>,
    way: &'a Way,
    arguments: [Option<Object<'py>>; ARGUMENTS],
    variables: [Option<Object<'py>>; VARIABLES],
    /// Number of list elements that may still be read for this batch, at most [`MAX_ELEMENTS`].
    left: usize,
    /// The index in `way.names` of the attribute that was looked up last.
    name: usize,
}

impl<'a, 'py> BatchReading<'a, 'py> {
    pub(super) const fn new(
        py: Python<'py>,
        way: &'a Way,
        arguments: [Option<Object<'py>>; ARGUMENTS],
    ) -> Self {
        Self {
            py,
            way,
            arguments,
            variables: [const { None }; VARIABLES],
            left: MAX_ELEMENTS,
            name: usize::MAX,
        }
    }

    /// Returns the name of the attribute that was looked up last, or `None` if none was looked up yet.
    pub(crate) fn at(&self) -> Option<&'a str> {
        self.text(self.name)
    }

    /// Evaluates a formula whose value is an integer.
    pub(crate) fn number(&mut self, node: &Node) -> Result<i64, Refused> {
        Ok(match node {
            Node::Number(number) => *number,
            Node::Length(of) => plain::length(&self.object(of)?)? as i64,
            Node::Sum(sum) => self.sum(sum)?,
            Node::If(parts) => {
                let [this, test, other] = &**parts;
                let holds = self.number(test)? != 0;
                return self.number(if holds { this } else { other });
            }
            Node::Compares(comparison, sides) => i64::from(self.compare(*comparison, sides)?),
            Node::OneOf(value, names) => {
                let object = self.object(value)?;
                let text = object.as_text().ok_or(Refused::NoText)?;
                let is_one = |name: &usize| self.text(*name) == Some(text);
                i64::from(names.iter().any(is_one))
            }
            Node::Adds(sides) => {
                let (one, other) = self.both(sides)?;
                one.saturating_add(other)
            }
            Node::Subtracts(sides) => {
                let (one, other) = self.both(sides)?;
                one.saturating_sub(other)
            }
            Node::Multiplies(sides) => {
                let (one, other) = self.both(sides)?;
                one.saturating_mul(other)
            }
            Node::Text(_)
            | Node::Argument(_)
            | Node::Variable(_)
            | Node::Attribute(..)
            | Node::Item(_) => plain::number(&self.object(node)?)?,
        })
    }

    /// Evaluates a formula whose value is an object.
    fn object(&mut self, node: &Node) -> Result<Object<'py>, Refused> {
        match node {
            Node::Text(name) => self.way.names[*name].get(self.py).ok_or(Refused::NoItem),
            Node::Argument(place) => self.arguments[*place].clone().ok_or(Refused::NoArgument),
            Node::Variable(slot) => self.variables[*slot].clone().ok_or(Refused::NoItem),
            Node::Attribute(of, name) => {
                let of = self.object(of)?;
                self.name = *name;
                let way = self.way;
                plain::attribute(&of, &way.names[*name], &way.formulas.names[*name], &way.get)
            }
            Node::Item(parts) => {
                let [of, key] = &**parts;
                let of = self.object(of)?;
                if of.kind() == self.py.api.types.dict {
                    return plain::item(&of, &self.object(key)?);
                }
                Elements::new(of).at(self.number(key)? as isize)
            }
            _ => Err(Refused::NoItem),
        }
    }

    fn text(&self, name: usize) -> Option<&'a str> {
        self.way.formulas.names.get(name).map(String::as_str)
    }

    #[inline(never)]
    fn both(&mut self, sides: &[Node; 2]) -> Result<(i64, i64), Refused> {
        let [one, other] = sides;
        Ok((self.number(one)?, self.number(other)?))
    }

    #[inline(never)]
    fn compare(
        &mut self,
        comparison: ComparisonOperator,
        sides: &[Node; 2],
    ) -> Result<bool, Refused> {
        let [one, other] = sides;
        let order = if let Node::Text(name) = other {
            let object = self.object(one)?;
            Some(object.as_text().ok_or(Refused::NoText)?).cmp(&self.text(*name))
        } else {
            let (one, other) = self.both(sides)?;
            one.cmp(&other)
        };
        Ok(comparison.holds(order))
    }

    #[inline(never)]
    fn sum(&mut self, sum: &SumExpression) -> Result<i64, Refused> {
        let mut lists = [const { None }; VARIABLES];
        let mut length = isize::MAX;
        for (place, list) in lists.iter_mut().zip(&sum.lists) {
            let list = self.object(list)?;
            length = length.min(plain::length(&list)?);
            *place = Some(Elements::new(list));
        }
        let left = self.left.checked_sub(length.unsigned_abs());
        self.left = left.ok_or(Refused::TooMany)?;
        let mut total = 0_i64;
        let quick = sum
            .test
            .as_ref()
            .and_then(|test| Quick::new(test, sum.first, &lists, self.way.ints.as_ref()));
        let mut next = 0;
        loop {
            let index = match &quick {
                Some(quick) => quick.first(next, length)?,
                None => next,
            };
            if index >= length {
                return Ok(total);
            }
            next = index + 1;
            let variables = self.variables.iter_mut().skip(sum.first);
            for (variable, list) in variables.zip(lists.iter().flatten()) {
                *variable = Some(list.at(index)?);
            }
            let counts = match &sum.test {
                Some(test) if quick.is_none() => self.number(test)? != 0,
                _ => true,
            };
            if counts {
                total = total.saturating_add(self.number(&sum.each)?);
            }
        }
    }
}

/// The condition in a sum over a list, in a form that is checked fast: most elements of the list do not meet the
/// condition. This form is used only if the condition compares each element with a constant number.
struct Quick<'a, 'py> {
    list: &'a Elements<'py>,
    comparison: ComparisonOperator,
    number: i64,
    /// The memory layout of Python ints, with which elements other than 0 are skipped fast; `None` unless the
    /// condition is `== 0`.
    zeros: Option<&'a Ints>,
}

impl<'a, 'py> Quick<'a, 'py> {
    fn new(
        test: &Node,
        first: usize,
        lists: &'a [Option<Elements<'py>>],
        ints: Option<&'a Ints>,
    ) -> Option<Self> {
        let Node::Compares(comparison, sides) = test else {
            return None;
        };
        let (Node::Variable(slot), Node::Number(number)) = (&sides[0], &sides[1]) else {
            return None;
        };
        let list = lists.get(slot.checked_sub(first)?)?.as_ref()?;
        Some(Self {
            list,
            comparison: *comparison,
            number: *number,
            zeros: ints.filter(|_| *comparison == ComparisonOperator::Is && *number == 0),
        })
    }

    /// Returns the first index in `from..to` for which the condition holds, or `to` if there is
    /// none.
    fn first(&self, from: isize, to: isize) -> Result<isize, Refused> {
        let mut index = from;
        loop {
            if let Some(ints) = self.zeros {
                index = self.list.skip_others(index, to, ints);
            }
            if index >= to {
                return Ok(to);
            }
            let value = plain::number(&self.list.at(index)?)?;
            if self.comparison.holds(value.cmp(&self.number)) {
                return Ok(index);
            }
            index += 1;
        }
    }
}
