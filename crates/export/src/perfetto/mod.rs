//! Perfetto's protobuf, which its UI and its trace processor read.
//!
//! Each record is a sequence of packets of its own, with its own table of names. A span is a packet
//! where it begins and one where it ends; the trace processor puts packets in the order of their times,
//! and those of one time in the order that they have in the file.

mod proto;

use std::collections::HashMap;
use std::io;

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use proto::{
    Clock, ClockSnapshot, CounterDescriptor, DebugAnnotation, Interned, InternedData,
    ProcessDescriptor, ThreadDescriptor, TracePacket, TracePacketDefaults, TrackDescriptor,
    TrackEvent,
};
use tllmprof_record::StringId;

use crate::activity::{Activity, Arg, Category, Name, Track, Value};
use crate::clocks::Clocks;
use crate::record::Record;
use crate::sink::Sink;
use crate::timeline::{Format, Group, Id, Line};

pub struct Perfetto<'a> {
    sink: &'a mut Sink,
    sequence: u32,
    names: Names,
    /// Kept for their memory.
    begin: TracePacket,
    end: TracePacket,
}

impl<'a> Perfetto<'a> {
    pub fn new(sink: &'a mut Sink) -> Self {
        Self {
            sink,
            sequence: 0,
            names: Names::default(),
            begin: TracePacket::default(),
            end: TracePacket::default(),
        }
    }

    fn packet(&mut self, packet: &TracePacket) -> io::Result<()> {
        put(self.sink.bytes(), packet);
        self.sink.ready()
    }

    fn descriptor(&mut self, descriptor: TrackDescriptor) -> io::Result<()> {
        self.packet(&TracePacket {
            trusted_packet_sequence_id: Some(self.sequence),
            track_descriptor: Some(descriptor),
            ..TracePacket::default()
        })
    }
}

/// What a sequence has told the names of, each by a number.
#[derive(Default)]
struct Names {
    names: HashMap<Name, u64>,
    domains: HashMap<StringId, u64>,
    /// What the next packet tells.
    new: InternedData,
    is_new: bool,
}

impl Names {
    /// Those of a sequence that begins.
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
                debug_annotation_names: all(&mut Arg::KEYS.iter().copied()),
                ..InternedData::default()
            },
            is_new: true,
            ..Self::default()
        }
    }

    fn name(&mut self, record: &Record, name: Name) -> u64 {
        let next = self.names.len() as u64 + 1;
        *self.names.entry(name).or_insert_with(|| {
            let mut text = String::new();
            name.write(record, &mut text);
            self.new.event_names.push(interned(next, text));
            self.is_new = true;
            next
        })
    }

    fn domain(&mut self, record: &Record, id: StringId) -> u64 {
        let next = self.domains.len() as u64 + 1;
        *self.domains.entry(id).or_insert_with(|| {
            let text = record.strings.get(id).to_owned();
            let values = &mut self.new.debug_annotation_string_values;
            values.push(interned(next, text));
            self.is_new = true;
            next
        })
    }

    fn annotation(&mut self, record: &Record, arg: Arg) -> DebugAnnotation {
        let (key, value) = arg.parts();
        let mut annotation = DebugAnnotation {
            name_iid: Some(key as u64 + 1),
            ..DebugAnnotation::default()
        };
        match value {
            Value::Number(number) => annotation.uint_value = Some(number),
            Value::Text(id) => annotation.string_value_iid = Some(self.domain(record, id)),
            Value::Yes => annotation.bool_value = Some(true),
        }
        annotation
    }

    /// What has not been told yet.
    fn untold(&mut self) -> Option<InternedData> {
        std::mem::take(&mut self.is_new).then(|| std::mem::take(&mut self.new))
    }
}

/// Makes a packet an event of a line at a moment, and gives the event. Their memory is used again.
fn event(packet: &mut TracePacket, sequence: u32, line: Id, at: u64, kind: u32) -> &mut TrackEvent {
    packet.timestamp = Some(at);
    packet.trusted_packet_sequence_id = Some(sequence);
    packet.sequence_flags = Some(proto::SEQ_NEEDS_INCREMENTAL_STATE);
    let event = packet.track_event.get_or_insert_default();
    event.r#type = Some(kind);
    event.track_uuid = Some(uuid(line));
    event
}

impl Format for Perfetto<'_> {
    fn begin(&mut self, clocks: &Clocks) -> io::Result<()> {
        // The time of day, where it is later than the clock's zero.
        let clock = |clock_id, timestamp| Clock {
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
        self.names = Names::begin();
        self.packet(&TracePacket {
            trusted_packet_sequence_id: Some(self.sequence),
            sequence_flags: Some(proto::SEQ_INCREMENTAL_STATE_CLEARED),
            trace_packet_defaults: Some(TracePacketDefaults {
                timestamp_clock_id: Some(proto::CLOCK_MONOTONIC),
            }),
            ..TracePacket::default()
        })
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

    fn line(&mut self, group: &Group, line: &Line) -> io::Result<()> {
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
        line: &Line,
        activity: &Activity,
    ) -> io::Result<()> {
        let (sequence, names) = (self.sequence, &mut self.names);
        let kind = match activity.duration {
            Some(_) => proto::TYPE_SLICE_BEGIN,
            None => proto::TYPE_INSTANT,
        };
        let begin = event(&mut self.begin, sequence, line.id, activity.start, kind);
        begin.category_iids.clear();
        begin.category_iids.push(activity.category as u64 + 1);
        (begin.name_iid, begin.name) = (None, None);
        if activity.name.is_rare() {
            let mut text = String::new();
            activity.name.write(record, &mut text);
            begin.name = Some(text);
        } else {
            begin.name_iid = Some(names.name(record, activity.name));
        }
        begin.debug_annotations.clear();
        for arg in activity.args() {
            begin.debug_annotations.push(names.annotation(record, arg));
        }
        self.begin.interned_data = names.untold();
        put(self.sink.bytes(), &self.begin);
        if let Some(duration) = activity.duration {
            let at = activity.start + duration;
            event(&mut self.end, sequence, line.id, at, proto::TYPE_SLICE_END);
            put(self.sink.bytes(), &self.end);
        }
        self.sink.ready()
    }

    fn value(&mut self, _: &Group, line: &Line, at: u64, value: f64) -> io::Result<()> {
        let mut packet = TracePacket::default();
        let counter = event(&mut packet, self.sequence, line.id, at, proto::TYPE_COUNTER);
        counter.double_counter_value = Some(value);
        self.packet(&packet)
    }

    fn end(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A packet as a field of the trace. It is made in place: bytes that are put behind a vector one by one
/// are each a call.
fn put(to: &mut Vec<u8>, packet: &TracePacket) {
    let (before, length) = (to.len(), packet.encoded_len());
    to.resize(before + KEY_AND_LENGTH + length, 0);
    let mut rest = &mut to[before..];
    encode_key(proto::TRACE_PACKET, WireType::LengthDelimited, &mut rest);
    encode_varint(length as u64, &mut rest);
    packet.encode_raw(&mut rest);
    let unused = rest.len();
    to.truncate(to.len() - unused);
}

/// Bytes before a packet, at most.
const KEY_AND_LENGTH: usize = 1 + 10;

fn interned(iid: u64, name: String) -> Interned {
    Interned {
        iid: Some(iid),
        name: Some(name),
    }
}

const fn uuid(id: Id) -> u64 {
    id as u64
}
