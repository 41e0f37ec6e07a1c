//! The comparison operators of conditions and formulas.

use std::cmp::Ordering;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Comparison {
    Is,
    IsNot,
    Less,
    LessOrEqual,
    More,
    MoreOrEqual,
}

/// Longer signs come first, so that `<=` is not read as `<`.
const SIGNS: [(&str, Comparison); 6] = [
    ("==", Comparison::Is),
    ("!=", Comparison::IsNot),
    ("<=", Comparison::LessOrEqual),
    (">=", Comparison::MoreOrEqual),
    ("<", Comparison::Less),
    (">", Comparison::More),
];

impl Comparison {
    /// The sign that the text begins with, and its comparison.
    pub(crate) fn at_start(text: &str) -> Option<(&'static str, Self)> {
        SIGNS.into_iter().find(|(sign, _)| text.starts_with(sign))
    }

    /// The sign as conditions print it: `=` for equality, whether `==` or `=` was typed.
    pub(crate) fn sign(self) -> &'static str {
        let mut signs = SIGNS.iter();
        let sign = signs.find(|(_, comparison)| *comparison == self && self != Self::Is);
        sign.map_or("=", |(sign, _)| sign)
    }

    /// Returns whether the comparison holds for two values in this order.
    #[must_use]
    pub const fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Is => order.is_eq(),
            Self::IsNot => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::More => order.is_gt(),
            Self::MoreOrEqual => order.is_ge(),
        }
    }
}
