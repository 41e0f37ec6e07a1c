//! The comparison operators, such as `<`, of conditions and formulas.

use std::cmp::Ordering;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ComparisonOperator {
    Is,
    IsNot,
    Less,
    LessOrEqual,
    More,
    MoreOrEqual,
}

/// The comparison signs. A longer sign comes before its prefix, so that `<=` is not read as `<`.
const SIGNS: [(&str, ComparisonOperator); 6] = [
    ("==", ComparisonOperator::Is),
    ("!=", ComparisonOperator::IsNot),
    ("<=", ComparisonOperator::LessOrEqual),
    (">=", ComparisonOperator::MoreOrEqual),
    ("<", ComparisonOperator::Less),
    (">", ComparisonOperator::More),
];

impl ComparisonOperator {
    /// Returns the comparison sign at the beginning of the text, and the operator for this sign. `None` if the text
    /// begins with no comparison sign.
    pub(crate) fn at_start(text: &str) -> Option<(&'static str, Self)> {
        SIGNS.into_iter().find(|(sign, _)| text.starts_with(sign))
    }

    /// Returns the sign that conditions print. Equality is printed as `=`, whether the user typed
    /// `==` or `=`.
    pub(crate) fn sign(self) -> &'static str {
        let mut signs = SIGNS.iter();
        let sign = signs.find(|(_, comparison)| *comparison == self && self != Self::Is);
        sign.map_or("=", |(sign, _)| sign)
    }

    /// Returns true if the comparison holds for two values whose order is `order`. For example, `Less` holds if `order`
    /// is `Ordering::Less`.
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
