//! Encodes the most frequent packets directly, field by field. Building a message structure first and then encoding the
//! structure would take three times as long. The field numbers are those in `proto`.

/// Maximum size of an event's packet, in bytes. A packet with all seven arguments of an activity and without a flow has
/// at most 118 bytes. A packet with a flow has at most 112 bytes, because its activity has no NVTX domain. Up to 127
/// bytes, the length of each message inside a packet fits into one byte.
const MAX_BYTES: usize = 127;

/// A packet of Perfetto's format that is being encoded.
pub(crate) struct Wire {
    bytes: [u8; MAX_BYTES],
    length: usize,
}

/// A message that is still open: its length has not been written yet, and further fields can be added. The value is the
/// index of the message's length byte in the packet.
#[must_use]
pub(crate) struct OpenMessage(usize);

impl Wire {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; MAX_BYTES],
            length: 0,
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Writes a number field in protobuf's encoding of variable length (varint).
    #[inline]
    pub(crate) const fn number(&mut self, field: u8, value: u64) {
        self.varint((field as u64) << 3);
        self.varint(value);
    }

    /// Writes a number field in protobuf's encoding of fixed length, eight bytes.
    #[inline]
    pub(crate) fn fixed(&mut self, field: u8, value: u64) {
        self.varint((field as u64) << 3 | 1);
        for byte in value.to_le_bytes() {
            self.byte(byte);
        }
    }

    /// Begins a field that is a message. The fields that are written next belong to this message, until the message is
    /// ended.
    #[inline]
    pub(crate) const fn begin(&mut self, field: u8) -> OpenMessage {
        self.varint((field as u64) << 3 | 2);
        self.byte(0);
        OpenMessage(self.length - 1)
    }

    #[inline]
    pub(crate) const fn end(&mut self, message: OpenMessage) {
        let OpenMessage(at) = message;
        self.bytes[at] = (self.length - at - 1) as u8;
    }

    #[inline]
    const fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }

    #[inline]
    const fn byte(&mut self, byte: u8) {
        debug_assert!(self.length < MAX_BYTES);
        if self.length < MAX_BYTES {
            self.bytes[self.length] = byte;
            self.length += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::super::proto::{DebugAnnotation, TracePacket, TrackEvent};
    use super::*;

    #[test]
    fn a_packet_with_a_flow_reads_as_it_was_written() {
        let mut wire = Wire::new();
        let event = wire.begin(11);
        for _ in 0..3 {
            let annotation = wire.begin(4);
            wire.number(1, 10);
            wire.number(3, u64::MAX);
            wire.end(annotation);
        }
        wire.fixed(47, u64::MAX - 1);
        wire.end(event);
        let annotation = DebugAnnotation {
            name_iid: Some(10),
            uint_value: Some(u64::MAX),
            ..DebugAnnotation::default()
        };
        let event = TrackEvent {
            debug_annotations: vec![annotation; 3],
            flow_ids: vec![u64::MAX - 1],
            ..TrackEvent::default()
        };
        let packet = TracePacket::decode(wire.bytes()).unwrap();
        assert_eq!(packet.track_event, Some(event));
    }

    #[test]
    fn the_longest_packet_reads_as_it_was_written() {
        let mut wire = Wire::new();
        let packet = wire.begin(1);
        wire.number(8, i64::MAX as u64);
        wire.number(10, u64::from(u32::MAX));
        wire.number(13, 2);
        let event = wire.begin(11);
        wire.number(3, 12);
        wire.number(9, 1);
        wire.number(10, u64::from(u32::MAX));
        wire.number(11, u64::from(u32::MAX));
        for _ in 0..5 {
            let annotation = wire.begin(4);
            wire.number(1, 10);
            wire.number(3, u64::MAX);
            wire.end(annotation);
        }
        wire.end(event);
        wire.end(packet);
        let annotation = DebugAnnotation {
            name_iid: Some(10),
            uint_value: Some(u64::MAX),
            ..DebugAnnotation::default()
        };
        let event = TrackEvent {
            category_iids: vec![12],
            debug_annotations: vec![annotation; 5],
            r#type: Some(1),
            name_iid: Some(u64::from(u32::MAX)),
            track_uuid: Some(u64::from(u32::MAX)),
            ..TrackEvent::default()
        };
        let expected = TracePacket {
            timestamp: Some(i64::MAX as u64),
            trusted_packet_sequence_id: Some(u32::MAX),
            sequence_flags: Some(2),
            track_event: Some(event),
            ..TracePacket::default()
        };
        let bytes = wire.bytes();
        assert_eq!(usize::from(bytes[1]), bytes.len() - 2);
        assert_eq!(TracePacket::decode(&bytes[2..]).unwrap(), expected);
    }
}
