//! Evaluates filters on entities.
//!
//! The types of a property and a literal must be equal, except that literals are widened: Int32 to Int64, and
//! both to Double. Strings compare by UTF-16 code units, Guids and binaries by bytes. NaN is unequal to
//! everything.

use std::cmp::Ordering;

use lazuli_concurrency::Stamp;

use super::{Comparison, Filter, Operator, Property};
use crate::entity::Entity;
use crate::keys::{Keys, ordinal};
use crate::value::Value;

/// An object on which a filter can be evaluated.
pub(crate) trait FilterSubject {
    /// Returns the value of a property; `None` if the object does not have it.
    fn get(&self, property: &Property) -> Option<Value<'_>>;
}

/// An entity with its keys and its stamp.
pub(crate) struct FoundEntity<'a> {
    pub(crate) keys: &'a Keys,
    pub(crate) stamp: Stamp,
    pub(crate) entity: &'a Entity<'a>,
}

impl FilterSubject for FoundEntity<'_> {
    fn get(&self, property: &Property) -> Option<Value<'_>> {
        match property {
            Property::PartitionKey => Some(Value::String(self.keys.partition.as_str().into())),
            Property::RowKey => Some(Value::String(self.keys.row.as_str().into())),
            Property::Timestamp => Some(Value::DateTime(self.stamp.timestamp().ticks())),
            Property::Named(name) => self.entity.get(name).cloned(),
        }
    }
}

impl Filter {
    /// Returns whether the filter matches the subject.
    pub(crate) fn matches(&self, subject: &impl FilterSubject) -> bool {
        match self {
            Self::Constant(is) => *is,
            Self::Comparison(Comparison { property, operator, literal }) => {
                subject.get(property).is_some_and(|value| compare(&value, *operator, literal))
            }
            Self::Not(inner) => !inner.matches(subject),
            Self::And(all) => all.iter().all(|filter| filter.matches(subject)),
            Self::Or(all) => all.iter().any(|filter| filter.matches(subject)),
        }
    }
}

/// Returns whether a comparison with a literal holds. It never holds between incompatible types.
pub(crate) fn compare(value: &Value<'_>, operator: Operator, literal: &Value<'_>) -> bool {
    let ordering = match (value, literal) {
        (Value::String(a), Value::String(b)) => Some(ordinal(a, b)),
        (Value::Boolean(a), Value::Boolean(b)) => Some(a.cmp(b)),
        (Value::Int32(a), Value::Int32(b)) => Some(a.cmp(b)),
        (Value::Int64(a), Value::Int64(b)) => Some(a.cmp(b)),
        (Value::Int64(a), Value::Int32(b)) => Some(a.cmp(&i64::from(*b))),
        (Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
        (Value::Double(a), Value::Int32(b)) => a.partial_cmp(&f64::from(*b)),
        (Value::Double(a), Value::Int64(b)) => a.partial_cmp(&(*b as f64)),
        (Value::DateTime(a), Value::DateTime(b)) => Some(a.cmp(b)),
        (Value::Guid(a), Value::Guid(b)) => Some(a.cmp(b)),
        (Value::Binary(a), Value::Binary(b)) => Some(a.cmp(b)),
        _ => return false,
    };
    operator.holds(ordering)
}

impl Operator {
    /// Returns whether the operator holds between values in the given order; `None` if they have no order.
    #[inline]
    pub(crate) fn holds(self, ordering: Option<Ordering>) -> bool {
        match self {
            Self::Equal => ordering == Some(Ordering::Equal),
            Self::NotEqual => ordering != Some(Ordering::Equal),
            Self::Less => ordering == Some(Ordering::Less),
            Self::LessOrEqual => ordering.is_some_and(Ordering::is_le),
            Self::Greater => ordering == Some(Ordering::Greater),
            Self::GreaterOrEqual => ordering.is_some_and(Ordering::is_ge),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entity() -> Entity<'static> {
        let properties = [
            ("S", Value::String("m\u{FF61}".into())),
            ("B", Value::Boolean(true)),
            ("F", Value::Boolean(false)),
            ("I", Value::Int32(5)),
            ("L", Value::Int64(5)),
            ("D", Value::Double(5.0)),
            ("N", Value::Double(f64::NAN)),
            ("T", Value::DateTime(637_545_308_929_740_791)),
            ("G", Value::Guid([0x7F; 16])),
            ("Y", Value::Binary(vec![1, 2].into())),
        ];
        Entity { properties: properties.map(|(name, value)| (name.into(), value)).to_vec() }
    }

    fn holds(text: &str) -> bool {
        let keys = Keys { partition: "p1".into(), row: "r1".into() };
        let stamp = Stamp::from_ticks(637_545_308_929_740_791);
        Filter::parse(text).unwrap().matches(&FoundEntity { keys: &keys, stamp, entity: &entity() })
    }

    /// The three literals of each row are less than, equal to and greater than the property.
    #[test]
    fn each_type_is_ordered() {
        for (property, less, equal, greater) in [
            ("PartitionKey", "'p0'", "'p1'", "'p10'"),
            ("RowKey", "''", "'r1'", "'s'"),
            ("S", "'m😀'", "'m\u{FF61}'", "'n'"),
            ("B", "false", "true", ""),
            ("F", "", "false", "true"),
            ("I", "4", "5", "6"),
            ("L", "4L", "5L", "6L"),
            ("L", "-2147483648", "5", "2147483648"),
            ("D", "4.9", "5.0", "5.1"),
            ("D", "-INF", "5", "INF"),
            ("D", "4L", "5L", "6L"),
            ("T", "datetime'2021-04-20T15:54:52.974079Z'", "datetime'2021-04-20T15:54:52.9740791Z'", {
                "datetime'2021-04-20T15:54:52.9740792Z'"
            }),
            ("Timestamp", "datetime'2021-04-20'", "datetime'2021-04-20T17:54:52.9740791+02:00'", {
                "datetime'2022-01-01T00:00Z'"
            }),
            (
                "G",
                "guid'7f7f7f7f-7f7f-7f7f-7f7f-7f7f7f7f7f7e'",
                "guid'7f7f7f7f-7f7f-7f7f-7f7f-7f7f7f7f7f7f'",
                { "guid'80000000-0000-0000-0000-000000000000'" },
            ),
            ("Y", "X'01'", "binary'0102'", "X'010200'"),
        ] {
            for (literal, equal, is_greater, is_less) in
                [(less, false, true, false), (equal, true, false, false), (greater, false, false, true)]
            {
                if literal.is_empty() {
                    continue;
                }
                for (operator, expected) in [
                    ("eq", equal),
                    ("ne", !equal),
                    ("gt", is_greater),
                    ("ge", is_greater || equal),
                    ("lt", is_less),
                    ("le", is_less || equal),
                ] {
                    let text = format!("{property} {operator} {literal}");
                    assert_eq!(holds(&text), expected, "{text}");
                    assert_eq!(holds(&format!("not ({text})")), !expected, "not {text}");
                }
            }
        }
    }

    #[test]
    fn missing_property_or_other_type_matches_no_comparison() {
        for operator in ["eq", "ne", "lt", "le", "gt", "ge"] {
            for (property, literal) in [
                ("Missing", "''"),
                ("Missing", "5"),
                ("missing", "true"),
                ("s", "'m'"),
                ("S", "5"),
                ("I", "'5'"),
                ("I", "5L"),
                ("I", "5.0"),
                ("L", "5.0"),
                ("B", "'true'"),
                ("T", "'2021-04-20'"),
                ("G", "'7f7f7f7f-7f7f-7f7f-7f7f-7f7f7f7f7f7f'"),
                ("PartitionKey", "1"),
            ] {
                let text = format!("{property} {operator} {literal}");
                assert!(!holds(&text), "{text}");
                assert!(holds(&format!("not ({text})")), "not {text}");
            }
        }
    }

    #[test]
    fn nan_is_unequal_to_everything() {
        for (operator, expected) in
            [("eq", false), ("ne", true), ("lt", false), ("le", false), ("gt", false), ("ge", false)]
        {
            for literal in ["NaN", "5.0", "5"] {
                assert_eq!(holds(&format!("N {operator} {literal}")), expected, "{operator} {literal}");
            }
            assert_eq!(holds(&format!("D {operator} NaN")), expected, "{operator}");
        }
    }

    #[test]
    fn boolean_property_is_a_condition_by_itself() {
        for (text, expected) in [
            ("B", true),
            ("F", false),
            ("not F", true),
            ("not Missing", true),
            ("I", false),
            ("B and not F and I eq 5", true),
            ("F or B and false", false),
            ("(F or B) and true", true),
        ] {
            assert_eq!(holds(text), expected, "{text}");
        }
    }
}
