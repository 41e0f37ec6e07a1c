//! Exports records as Parquet tables. The tables are partitioned by run, host, rank and process, with paths in Hive's
//! form: `calls/run=20260102-030405-99-ab12/host=gpu7/rank=0/pid=4000/part-0.parquet`.
//!
//! One thread reads the record and collects rows. Another thread encodes and writes them.

mod columns;
mod rows;
mod schema;

use std::collections::HashSet;
use std::fmt::Write;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use ::parquet::basic::{Compression, Encoding};
use ::parquet::errors::ParquetError;
use ::parquet::file::properties::{EnabledStatistics, WriterProperties};
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::types::ColumnPath;
use columns::{Cell, RowGroup};
use rows::{Tables, Texts};
pub use schema::TABLES;
use schema::{ColumnKind, Table};

use crate::exported::Exported;
use crate::private::private_file;
use crate::record::Record;

/// Number of rows of a table that are encoded together, as one Parquet row group.
const GROUP_ROWS: usize = 1 << 17;
/// Maximum number of row groups that wait for the thread that encodes them.
const MAX_WAITING_GROUPS: usize = 2;

/// Writes the tables of all records into `folder`.
///
/// # Errors
/// Returns an error if a record cannot be read or a file cannot be written.
pub fn parquet(records: &[Record], folder: &Path) -> io::Result<Exported> {
    let mut exported = Exported::default();
    let mut taken = HashSet::new();
    for record in records {
        let mut partition = Partition::new(record);
        while !taken.insert(partition.clone()) {
            partition.part += 1;
        }
        exported.events += tables(record, folder, &partition)?;
    }
    Ok(exported)
}

/// The partition to which all rows of a record belong, in each table.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Partition {
    folder: PathBuf,
    part: u32,
}

impl Partition {
    fn new(record: &Record) -> Self {
        let facts = &record.process.facts;
        // Queries join tables by the name of the run. A null would match no other value, so a missing name is
        // replaced.
        let run = match &*facts.run {
            "" => "none",
            run => run,
        };
        let mut folder = PathBuf::from(format!("run={}", hive(run)));
        folder.push(format!("host={}", hive(&facts.host)));
        folder.push(format!("rank={}", facts.rank));
        folder.push(format!("pid={}", record.process.pid));
        Self { folder, part: 0 }
    }
}

/// Returns a value in a form that can be part of a path. All ASCII characters except letters, digits, `-`, `_` and `.`
/// are replaced by `%` and the two hexadecimal digits of their code. Some of them have a meaning in paths or in path
/// patterns. As with Hive, other characters are not replaced. Spark and DuckDB decode the result.
fn hive(value: &str) -> String {
    /// Maximum length of a host or run name, in bytes. Together with the prefix `host=`, such a name still fits into a
    /// file name.
    const MAX_VALUE_BYTES: usize = 240;
    let mut text = String::new();
    for c in value.chars() {
        if text.len() + c.len_utf8().max(3) > MAX_VALUE_BYTES {
            break;
        }
        if c.is_ascii_alphanumeric() || "-_.".contains(c) || !c.is_ascii() {
            text.push(c);
        } else {
            let _ = write!(text, "%{:02X}", u32::from(c));
        }
    }
    match &text[..] {
        "" => "__HIVE_DEFAULT_PARTITION__".to_owned(),
        _ => text,
    }
}

fn tables(record: &Record, folder: &Path, partition: &Partition) -> io::Result<u64> {
    let mut files = Vec::new();
    for table in TABLES {
        let folder = folder.join(table.name).join(&partition.folder);
        fs::create_dir_all(&folder)?;
        let file = folder.join(format!("part-{}.parquet", partition.part));
        files.push(create(table, &file).map_err(failed)?);
    }
    thread::scope(|scope| {
        let (writer, packets) = sync_channel::<(usize, RowGroup)>(MAX_WAITING_GROUPS);
        let encoding = scope.spawn(move || {
            for (table, rows) in packets {
                rows.write(&mut files[table])?;
            }
            files.into_iter().try_for_each(|mut file| {
                file.finish()?;
                Ok(())
            })
        });
        let mut gathered = Gathered {
            rows: TABLES.iter().map(RowGroup::new).collect(),
            writer,
            count: 0,
        };
        let read = rows::rows(record, &mut gathered).and_then(|()| gathered.finish());
        match encoding.join() {
            Ok(written) => written.map_err(failed).and(read),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn create(table: &Table, file: &Path) -> Result<SerializedFileWriter<File>, ParquetError> {
    let mut properties = WriterProperties::builder()
        .set_created_by("tllmprof".to_owned())
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::Chunk);
    for field in table
        .fields
        .iter()
        .filter(|field| field.kind == ColumnKind::Time)
    {
        let column = ColumnPath::from(field.name);
        properties = properties
            .set_column_dictionary_enabled(column.clone(), false)
            .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED);
    }
    let properties = Arc::new(properties.build());
    SerializedFileWriter::new(private_file(file)?, table.schema()?, properties)
}

fn failed(error: ParquetError) -> io::Error {
    match error {
        // The I/O error describes the problem better than the Parquet error that contains it.
        ParquetError::External(inner) => match inner.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        error => io::Error::other(error),
    }
}

/// The rows of each table that have been collected but not yet passed to the encoder.
struct Gathered {
    rows: Vec<RowGroup>,
    writer: SyncSender<(usize, RowGroup)>,
    count: u64,
}

impl Tables for Gathered {
    fn row(&mut self, table: usize, cells: &[Cell], texts: &Texts) -> io::Result<()> {
        let rows = &mut self.rows[table];
        rows.push(cells, &texts.all);
        self.count += 1;
        if rows.count() < GROUP_ROWS {
            return Ok(());
        }
        let rows = std::mem::replace(rows, RowGroup::new(&TABLES[table]));
        self.send(table, rows)
    }
}

impl Gathered {
    fn send(&self, table: usize, rows: RowGroup) -> io::Result<()> {
        // If sending fails, the encoder thread has failed. Joining that thread returns the reason.
        let sent = self.writer.send((table, rows));
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn finish(mut self) -> io::Result<u64> {
        for (table, rows) in std::mem::take(&mut self.rows).into_iter().enumerate() {
            if rows.count() > 0 {
                self.send(table, rows)?;
            }
        }
        Ok(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_cannot_lead_out_of_the_folder() {
        assert_eq!(hive("gpu-7.local"), "gpu-7.local");
        assert_eq!(hive("../../x y*"), "..%2F..%2Fx%20y%2A");
        assert_eq!(hive("ü=\n"), "ü%3D%0A");
        assert_eq!(hive(""), "__HIVE_DEFAULT_PARTITION__");
        assert_eq!(hive(&"\n".repeat(4096)).len(), 240);
        assert_eq!(hive(&"漢".repeat(4096)).len(), 240);
    }
}
