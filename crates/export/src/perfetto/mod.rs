//! Writes Perfetto's protobuf format, which the Perfetto UI and Perfetto's trace processor read.
//!
//! Each record becomes a separate sequence of packets with its own table of names. A span is written as two packets,
//! one for its start and one for its end. The trace processor sorts packets by time. Packets with the same time keep
//! the order of the file.

mod proto;
mod wire;

use std::collections::HashMap;
use std::io;

use proto::{
    ClockSnapshot, CounterDescriptor, Interned, InternedData, ProcessDescriptor, ProtoClock,
    ThreadDescriptor, TracePacket, TracePacketDefaults, TrackDescriptor, TrackEvent,
};
use tllmprof_timeline::{Category, Key, Name, Track};

use wire::{OpenMessage, Wire};

use crate::activity::{Activity, ArgumentValue, SharedText};
use crate::clocks::Clocks;
use crate::record::Record;
use crate::sink::Sink;
use crate::trace::{Group, Id, TraceFormat, TrackLine};

pub(crate) struct Perfetto<'a> {
    sink: &'a mut Sink,
    sequence: u32,
    names: InternedNames,
    /// Maximum number of names in the table of a sequence of packets: `MAX_NAMES`, except in tests.
    limit: usize,
}

impl<'a> Perfetto<'a> {
    pub(crate) fn new(sink: &'a mut Sink) -> Self {
        Self {
            sink,
            sequence: 0,
            names: InternedNames::default(),
            limit: MAX_NAMES,
        }
    }

    fn packet(&mut self, packet: &TracePacket) -> io::Result<()> {
        put(self.sink.bytes(), packet);
        self.sink.ready()
    }

    /// Clears the table of names, and writes a packet that makes the reader of the trace clear its table, too.
    fn restart(&mut self) -> io::Result<()> {
        self.names = InternedNames::begin();
        self.packet(&TracePacket {
            trusted_packet_sequence_id: Some(self.sequence),
            sequence_flags: Some(proto::SEQ_INCREMENTAL_STATE_CLEARED),
            trace_packet_defaults: Some(TracePacketDefaults {
                timestamp_clock_id: Some(proto::CLOCK_MONOTONIC),
            }),
            ..TracePacket::default()
        })
    }

    /// Begins the packet of an event. Returns the bytes of the packet so far, the open packet, and the event message,
    /// which is open inside the packet.
    fn event(&self, line: Id, at: u64, kind: u32) -> (Wire, OpenMessage, OpenMessage) {
        let mut wire = Wire::new();
        let packet = wire.begin(proto::TRACE_PACKET as u8);
        wire.number(8, at);
        wire.number(10, u64::from(self.sequence));
        wire.number(13, u64::from(proto::SEQ_NEEDS_INCREMENTAL_STATE));
        let event = wire.begin(11);
        wire.number(9, u64::from(kind));
        wire.number(11, uuid(line));
        (wire, packet, event)
    }

    fn descriptor(&mut self, descriptor: TrackDescriptor) -> io::Result<()> {
        self.packet(&TracePacket {
            trusted_packet_sequence_id: Some(self.sequence),
            track_descriptor: Some(descriptor),
            ..TracePacket::default()
        })
    }
}

/// Maximum number of names in the table of a sequence of packets. When this number is reached, the table is cleared and
/// names are written again, so that memory does not grow with the record.
const MAX_NAMES: usize = 1 << 20;

/// The table of names that the current sequence has written, each with its number.
#[derive(Default)]
struct InternedNames {
    names: HashMap<Name, u64>,
    texts: HashMap<SharedText, u64>,
    /// Names that have a number but are not defined in the trace yet. The next packet defines them.
    new: InternedData,
    is_new: bool,
}

impl InternedNames {
    /// Returns the table for a new sequence. The table already contains the event categories and the argument keys.
    fn begin() -> Self {
        let all = |texts: &mut dyn Iterator<Item = &'static str>| {
            let entries = (1..).zip(texts);
            entries
                .map(|(iid, text)| interned(iid, text.to_owned()))
                .collect()
        };
        Self {
            new: InternedData {
                event_categories: all(&mut Category::ALL.iter().map(|category| category.text())),
                debug_annotation_names: all(&mut Key::ALL.iter().map(|key| key.text())),
                ..InternedData::default()
            },
            is_new: true,
            ..Self::default()
        }
    }

    fn count(&self) -> usize {
        self.names.len() + self.texts.len()
    }

    fn name(&mut self, record: &Record, name: Name) -> u64 {
        let next = self.names.len() as u64 + 1;
        *self.names.entry(name).or_insert_with(|| {
            let mut text = String::new();
            name.write(record.texts(), &mut text);
            self.new.event_names.push(interned(next, text));
            self.is_new = true;
            next
        })
    }

    fn text(&mut self, record: &Record, text: SharedText) -> u64 {
        let next = self.texts.len() as u64 + 1;
        *self.texts.entry(text).or_insert_with(|| {
            let values = &mut self.new.debug_annotation_string_values;
            values.push(interned(next, text.resolve(record)));
            self.is_new = true;
            next
        })
    }

    /// Returns the names and texts that are not defined in the trace yet, and removes them from `new`. Returns `None`
    /// if there are none.
    fn take_new(&mut self) -> Option<InternedData> {
        std::mem::take(&mut self.is_new).then(|| std::mem::take(&mut self.new))
    }
}

impl TraceFormat for Perfetto<'_> {
    fn begin(&mut self, clocks: &Clocks) -> io::Result<()> {
        // Perfetto's clock value is unsigned, so the time of day is left out if the common clock begins before 1970.
        let clock = |clock_id, timestamp| ProtoClock {
            clock_id: Some(clock_id),
            timestamp: Some(timestamp),
        };
        let Ok(unix) = u64::try_from(clocks.unix) else {
            return Ok(());
        };
        self.packet(&TracePacket {
            clock_snapshot: Some(ClockSnapshot {
                clocks: vec![
                    clock(proto::CLOCK_MONOTONIC, 0),
                    clock(proto::CLOCK_REALTIME, unix),
                ],
                primary_trace_clock: Some(proto::CLOCK_MONOTONIC),
            }),
            ..TracePacket::default()
        })
    }

    fn record(&mut self, _: &Record) -> io::Result<()> {
        self.sequence += 1;
        self.restart()
    }

    fn group(&mut self, record: &Record, group: &Group) -> io::Result<()> {
        self.descriptor(TrackDescriptor {
            uuid: Some(uuid(group.id)),
            process: Some(ProcessDescriptor {
                pid: Some(group.pid as i32),
                cmdline: vec![record.process.facts.command.clone()],
                process_name: Some(group.title.clone()),
            }),
            ..TrackDescriptor::default()
        })
    }

    fn line(&mut self, group: &Group, line: &TrackLine) -> io::Result<()> {
        let mut descriptor = TrackDescriptor {
            uuid: Some(uuid(line.id)),
            ..TrackDescriptor::default()
        };
        match (line.track, line.thread) {
            (Track::Thread(_), None) => {
                descriptor.thread = Some(ThreadDescriptor {
                    pid: Some(group.pid as i32),
                    tid: Some(i64::from(line.tid)),
                    thread_name: Some(line.name.clone()),
                });
            }
            (track, parent) => {
                descriptor.name = Some(line.name.clone());
                descriptor.parent_uuid = Some(uuid(parent.unwrap_or(group.id)));
                if let Track::Counter { metric, .. } = track {
                    descriptor.counter = Some(CounterDescriptor {
                        unit_name: Some(metric.unit().to_owned()),
                    });
                }
            }
        }
        self.descriptor(descriptor)
    }

    fn activity(
        &mut self,
        record: &Record,
        _: &Group,
        line: &TrackLine,
        activity: &Activity,
    ) -> io::Result<()> {
        if self.names.count() >= self.limit {
            self.restart()?;
        }
        let name = self.names.name(record, activity.item.name);
        let (mut begin, packet, event) = self.event(
            line.id,
            activity.start,
            match activity.duration {
                Some(_) => proto::TYPE_SLICE_BEGIN,
                None => proto::TYPE_INSTANT,
            },
        );
        begin.number(3, activity.category as u64 + 1);
        begin.number(10, name);
        for (key, value) in activity.args() {
            let annotation = begin.begin(4);
            begin.number(1, key as u64 + 1);
            match value {
                ArgumentValue::Number(number) => begin.number(3, number),
                ArgumentValue::Text(text) => begin.number(17, self.names.text(record, text)),
                ArgumentValue::Yes => begin.number(2, 1),
            }
            begin.end(annotation);
        }
        if let Some(flow) = activity.flow {
            let id = u64::from(self.sequence) << 32 | u64::from(flow.launch);
            begin.fixed(47, id);
        }
        begin.end(event);
        begin.end(packet);
        if let Some(new) = self.names.take_new() {
            self.packet(&TracePacket {
                trusted_packet_sequence_id: Some(self.sequence),
                sequence_flags: Some(proto::SEQ_NEEDS_INCREMENTAL_STATE),
                interned_data: Some(new),
                ..TracePacket::default()
            })?;
        }
        self.sink.bytes().extend_from_slice(begin.bytes());
        if let Some(duration) = activity.duration {
            let at = activity.start + duration;
            let (mut end, packet, event) = self.event(line.id, at, proto::TYPE_SLICE_END);
            end.end(event);
            end.end(packet);
            self.sink.bytes().extend_from_slice(end.bytes());
        }
        self.sink.ready()
    }

    fn value(&mut self, _: &Group, line: &TrackLine, at: u64, value: f64) -> io::Result<()> {
        self.packet(&TracePacket {
            timestamp: Some(at),
            trusted_packet_sequence_id: Some(self.sequence),
            sequence_flags: Some(proto::SEQ_NEEDS_INCREMENTAL_STATE),
            track_event: Some(TrackEvent {
                r#type: Some(proto::TYPE_COUNTER),
                track_uuid: Some(uuid(line.id)),
                double_counter_value: Some(value),
                ..TrackEvent::default()
            }),
            ..TracePacket::default()
        })
    }

    fn end(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Appends a packet to the trace. All packets are elements of one repeated field of the trace message.
fn put(to: &mut Vec<u8>, packet: &TracePacket) {
    prost::encoding::message::encode(proto::TRACE_PACKET, packet, to);
}

fn interned(iid: u64, name: String) -> Interned {
    Interned {
        iid: Some(iid),
        name: Some(name),
    }
}

const fn uuid(id: Id) -> u64 {
    id as u64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prost::Message;
    use tllmprof_record::builder::Builder;
    use tllmprof_record::{ClockKind, Event, Source, What};

    use super::*;
    use crate::{sink, trace};

    struct Bytes(Vec<u8>);

    impl Source for Bytes {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
            (&self.0[..]).read_at(buffer, offset)
        }
    }

    #[derive(Clone, PartialEq, Message)]
    struct Trace {
        #[prost(message, repeated, tag = "1")]
        packet: Vec<TracePacket>,
    }

    #[test]
    fn names_that_were_forgotten_are_written_again() {
        let mut builder = Builder::new(1, ClockKind::Monotonic);
        let names: Vec<_> = (0..20)
            .map(|n| builder.string(1, &format!("f{n}")))
            .collect();
        for (at, n) in (0..100).zip((0..20).cycle()) {
            let name = names[n];
            builder.push(1, &Event::new(at * 10, 5, What::Function { name }));
        }
        let bytes = Box::new(Bytes(builder.bytes()));
        let record = Record::new("record".into(), bytes, Arc::new(|_| Ok(()))).unwrap();
        let mut trace = Vec::new();
        sink::through(&mut trace, false, |sink| {
            let mut perfetto = Perfetto::new(sink);
            perfetto.limit = 7;
            trace::write(&[record], &mut perfetto)
        })
        .unwrap();
        let mut known: HashMap<u64, String> = HashMap::new();
        let mut seen = Vec::new();
        for packet in Trace::decode(&trace[..]).unwrap().packet {
            if packet.sequence_flags == Some(proto::SEQ_INCREMENTAL_STATE_CLEARED) {
                known.clear();
            }
            for new in packet.interned_data.iter().flat_map(|new| &new.event_names) {
                known.insert(new.iid.unwrap(), new.name.clone().unwrap());
            }
            let event = packet.track_event.filter(|event| event.name_iid.is_some());
            seen.extend(event.map(|event| known[&event.name_iid.unwrap()].clone()));
            assert!(known.len() <= 7);
        }
        let expected: Vec<_> = (0..100).map(|n| format!("f{}", n % 20)).collect();
        assert_eq!(seen, expected);
    }
}
