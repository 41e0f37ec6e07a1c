//! Stores rows column by column, as Parquet requires.

use std::io::Write;

use ::parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use ::parquet::errors::{ParquetError, Result};
use ::parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};

use super::schema::{ColumnKind, Table};

/// The value of one column in one row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cell {
    Int(i64),
    Real(f64),
    Flag(bool),
    /// A text. The value is its index in the list of texts.
    Text(usize),
    Null,
}

impl From<u64> for Cell {
    /// Converts an unsigned number to a cell. A number that does not fit into 63 bits becomes the largest signed
    /// number.
    fn from(value: u64) -> Self {
        Self::Int(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<u32> for Cell {
    fn from(value: u32) -> Self {
        Self::Int(i64::from(value))
    }
}

impl From<u16> for Cell {
    fn from(value: u16) -> Self {
        Self::Int(i64::from(value))
    }
}

impl From<u8> for Cell {
    fn from(value: u8) -> Self {
        Self::Int(i64::from(value))
    }
}

impl From<bool> for Cell {
    fn from(value: bool) -> Self {
        Self::Flag(value)
    }
}

impl<T: Into<Self>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

#[derive(Debug)]
enum Values {
    Int(Vec<i64>),
    Real(Vec<f64>),
    Flag(Vec<bool>),
    Text(Vec<ByteArray>),
}

#[derive(Debug)]
struct Column {
    values: Values,
    /// For each row, 1 if the column has a value and 0 if the value is null. The list is `None` if the column cannot be
    /// null.
    levels: Option<Vec<i16>>,
}

/// A group of rows of a table, stored by column.
#[derive(Debug)]
pub(crate) struct RowGroup {
    columns: Vec<Column>,
    count: usize,
}

impl RowGroup {
    pub(crate) fn new(table: &Table) -> Self {
        let column = |field: &super::schema::Field| Column {
            values: match field.kind {
                ColumnKind::Time | ColumnKind::Int => Values::Int(Vec::new()),
                ColumnKind::Real => Values::Real(Vec::new()),
                ColumnKind::Flag => Values::Flag(Vec::new()),
                ColumnKind::Text => Values::Text(Vec::new()),
            },
            levels: field.optional.then(Vec::new),
        };
        Self {
            columns: table.fields.iter().map(column).collect(),
            count: 0,
        }
    }

    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// Adds a row. `cells` has one cell for each column.
    pub(crate) fn push(&mut self, cells: &[Cell], texts: &[ByteArray]) {
        debug_assert_eq!(cells.len(), self.columns.len());
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            if let Some(levels) = &mut column.levels {
                levels.push(i16::from(!matches!(cell, Cell::Null)));
            }
            match (&mut column.values, cell) {
                (_, Cell::Null) => debug_assert!(column.levels.is_some()),
                (Values::Int(values), Cell::Int(value)) => values.push(*value),
                (Values::Real(values), Cell::Real(value)) => values.push(*value),
                (Values::Flag(values), Cell::Flag(value)) => values.push(*value),
                (Values::Text(values), Cell::Text(index)) => values.push(texts[*index].clone()),
                (values, cell) => debug_assert!(false, "{cell:?} in {values:?}"),
            }
        }
        self.count += 1;
    }

    /// Writes the rows to `file` as one Parquet row group.
    pub(crate) fn write<W: Write + Send>(&self, file: &mut SerializedFileWriter<W>) -> Result<()> {
        let mut group = file.next_row_group()?;
        for column in &self.columns {
            let writer = group.next_column()?;
            let missing = || ParquetError::General("a column too many".to_owned());
            column.write(writer.ok_or_else(missing)?)?;
        }
        group.close()?;
        Ok(())
    }
}

impl Column {
    fn write(&self, mut writer: SerializedColumnWriter<'_>) -> Result<()> {
        let levels = self.levels.as_deref();
        match &self.values {
            Values::Int(values) => writer
                .typed::<Int64Type>()
                .write_batch(values, levels, None)?,
            Values::Real(values) => writer
                .typed::<DoubleType>()
                .write_batch(values, levels, None)?,
            Values::Flag(values) => writer
                .typed::<BoolType>()
                .write_batch(values, levels, None)?,
            Values::Text(values) => writer
                .typed::<ByteArrayType>()
                .write_batch(values, levels, None)?,
        };
        writer.close()
    }
}
