//! The schema of the tables: their names and columns. `docs/export.md` describes the tables for users.

use std::sync::Arc;

use ::parquet::basic::{LogicalType, Repetition, Type as Physical};
use ::parquet::errors::Result;
use ::parquet::schema::types::{Type, TypePtr};

/// The type of the values in a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ColumnKind {
    /// A time or a duration in nanoseconds. Only the differences between successive rows are stored, because they are
    /// small.
    Time,
    Int,
    Real,
    Flag,
    Text,
}

/// A column of an exported table.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub name: &'static str,
    pub kind: ColumnKind,
    /// True if cells of the column may be null.
    pub optional: bool,
}

/// A table of the export: its name and its columns.
#[derive(Debug)]
pub struct Table {
    pub name: &'static str,
    pub fields: &'static [Field],
}

const fn field(name: &'static str, kind: ColumnKind) -> Field {
    Field {
        name,
        kind,
        optional: false,
    }
}

const fn time(name: &'static str) -> Field {
    field(name, ColumnKind::Time)
}

const fn int(name: &'static str) -> Field {
    field(name, ColumnKind::Int)
}

const fn flag(name: &'static str) -> Field {
    field(name, ColumnKind::Flag)
}

const fn text(name: &'static str) -> Field {
    field(name, ColumnKind::Text)
}

const fn optional(field: Field) -> Field {
    Field {
        optional: true,
        ..field
    }
}

/// Tables whose rows are not made from the items of a timeline, such as the table of processes. The discriminant is the
/// table's index in [`TABLES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum Which {
    Processes,
    Threads,
    Windows,
    Iterations,
    Ledger,
}

/// All exported tables. The tables of [`Which`] come first, in the same order. The rows of the other tables are items
/// of a timeline; the name of a column determines which property of the item it holds.
pub const TABLES: &[Table] = &[
    Table {
        name: "processes",
        fields: &[
            text("file"),
            text("command"),
            text("process"),
            optional(text("rank_source")),
            optional(int("world_size")),
            optional(text("groups")),
            int("parent"),
            optional(text("ended")),
            text("rule"),
            text("engine"),
            text("windows"),
            text("library"),
            text("python"),
            text("gpus"),
            optional(int("cuda_driver")),
            text("boot"),
            int("unix_minus_monotonic_ns"),
            int("outside_iterations"),
            int("events"),
            int("dropped"),
            text("state"),
            optional(text("damage")),
        ],
    },
    Table {
        name: "threads",
        fields: &[int("thread"), text("name")],
    },
    Table {
        name: "windows",
        fields: &[
            text("kind"),
            int("first"),
            optional(int("last")),
            time("start_ns"),
            time("dur_ns"),
            flag("cut"),
        ],
    },
    Table {
        name: "iterations",
        fields: &[
            int("n"),
            time("start_ns"),
            time("dur_ns"),
            optional(int("gpu_ns")),
            int("thread"),
            int("launches"),
            int("calls"),
            int("wait_ns"),
            int("idle_ns"),
            optional(int("processor_ns")),
            optional(int("delayed_ns")),
            int("gil_wait_ns"),
            int("gc_ns"),
            int("kernels"),
            optional(int("gpu_busy_ns")),
            optional(int("requests")),
            optional(int("tokens")),
            optional(int("prefill_tokens")),
            optional(int("decode_tokens")),
            optional(text("phase")),
            flag("qualifies"),
            flag("cut"),
        ],
    },
    Table {
        name: "ledger",
        fields: &[
            int("first"),
            int("last"),
            text("side"),
            text("kind"),
            text("cause"),
            int("time_ns"),
            field("share", ColumnKind::Real),
            int("iterations"),
        ],
    },
    Table {
        name: "calls",
        fields: &[
            time("start_ns"),
            time("dur_ns"),
            int("thread"),
            text("name"),
            text("kind"),
            int("stream"),
            optional(int("iteration")),
            flag("capturing"),
            flag("failed"),
            flag("cut"),
        ],
    },
    Table {
        name: "events",
        fields: &[
            time("start_ns"),
            optional(time("dur_ns")),
            int("thread"),
            text("kind"),
            optional(text("name")),
            optional(text("domain")),
            optional(int("value")),
            optional(int("iteration")),
            flag("failed"),
            flag("cut"),
        ],
    },
    Table {
        name: "samples",
        fields: &[
            time("start_ns"),
            int("thread"),
            text("kind"),
            optional(text("state")),
            optional(text("function")),
            optional(text("stack")),
            optional(int("iteration")),
        ],
    },
    Table {
        name: "gpu_spans",
        fields: &[
            time("start_ns"),
            time("dur_ns"),
            int("device"),
            int("stream"),
            int("iteration"),
        ],
    },
    Table {
        name: "kernels",
        fields: &[
            time("start_ns"),
            time("dur_ns"),
            int("device"),
            int("stream"),
            text("name"),
            int("correlation"),
            optional(int("iteration")),
            optional(text("scope")),
        ],
    },
    Table {
        name: "copies",
        fields: &[
            time("start_ns"),
            time("dur_ns"),
            int("device"),
            int("stream"),
            text("kind"),
            int("bytes"),
            optional(int("iteration")),
        ],
    },
    Table {
        name: "metrics",
        fields: &[
            time("start_ns"),
            time("dur_ns"),
            int("device"),
            text("metric"),
            text("unit"),
            field("value", ColumnKind::Real),
        ],
    },
    Table {
        name: "experts",
        fields: &[int("layer"), int("expert"), int("tokens")],
    },
];

impl Table {
    /// Returns the table's schema in Parquet's form.
    pub fn schema(&self) -> Result<TypePtr> {
        let fields: Result<Vec<_>> = self.fields.iter().map(Field::schema).collect();
        let schema = Type::group_type_builder(self.name).with_fields(fields?);
        Ok(Arc::new(schema.build()?))
    }
}

impl Field {
    fn schema(&self) -> Result<TypePtr> {
        let (physical, logical) = match self.kind {
            ColumnKind::Time | ColumnKind::Int => (Physical::INT64, None),
            ColumnKind::Real => (Physical::DOUBLE, None),
            ColumnKind::Flag => (Physical::BOOLEAN, None),
            ColumnKind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        };
        let repetition = if self.optional {
            Repetition::OPTIONAL
        } else {
            Repetition::REQUIRED
        };
        let field = Type::primitive_type_builder(self.name, physical)
            .with_repetition(repetition)
            .with_logical_type(logical);
        Ok(Arc::new(field.build()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_table_is_at_its_place() {
        assert_eq!(TABLES[Which::Processes as usize].name, "processes");
        assert_eq!(TABLES[Which::Threads as usize].name, "threads");
        assert_eq!(TABLES[Which::Windows as usize].name, "windows");
        assert_eq!(TABLES[Which::Iterations as usize].name, "iterations");
        assert_eq!(TABLES[Which::Ledger as usize].name, "ledger");
        for table in TABLES {
            assert_eq!(
                table.schema().unwrap().get_fields().len(),
                table.fields.len()
            );
        }
    }
}
