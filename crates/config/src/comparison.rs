//! The comparisons that conditions and formulas have, and their signs.

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

/// The longer ones first.
const SIGNS: [(&str, Comparison); 6] = [
    ("==", Comparison::Is),
    ("!=", Comparison::IsNot),
    ("<=", Comparison::LessOrEqual),
    (">=", Comparison::MoreOrEqual),
    ("<", Comparison::Less),
    (">", Comparison::More),
];

impl Comparison {
    /// The sign that a text begins with, and what it means.
    pub(crate) fn at_start(text: &str) -> Option<(&'static str, Self)> {
        SIGNS.into_iter().find(|(sign, _)| text.starts_with(sign))
    }

    /// As a condition has it: one that is typed as `==` or `=` is a `=`.
    pub(crate) fn sign(self) -> &'static str {
        let mut signs = SIGNS.iter();
        let sign = signs.find(|(_, comparison)| *comparison == self && self != Self::Is);
        sign.map_or("=", |(sign, _)| sign)
    }

    /// Whether it holds for two values in this order.
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
