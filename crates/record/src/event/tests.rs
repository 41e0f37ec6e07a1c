use super::*;

#[test]
fn every_kind_comes_back() {
    let all = [
        What::Thread { tid: u32::MAX },
        What::ThreadName { name: 7 },
        What::String {
            id: u32::MAX,
            bytes: 4096,
        },
        What::Info {
            key: Some(Info::Rank),
            value: u64::MAX,
        },
        What::CallName {
            row: 255,
            kind: Some(CallKind::Wait),
            name: 9,
        },
        What::CallName {
            row: 1,
            kind: None,
            name: 9,
        },
        What::Call {
            row: 31,
            capturing: true,
            stream: u64::MAX,
        },
        What::Call {
            row: 0,
            capturing: false,
            stream: 0,
        },
        What::Iteration {
            n: u64::MAX,
            excluded: false,
        },
        What::Iteration {
            n: 7,
            excluded: true,
        },
        What::Window {
            edge: Edge::Open,
            iteration: 100,
        },
        What::Window {
            edge: Edge::Close,
            iteration: 150,
        },
        What::Range {
            kind: RangeKind::PushPop,
            domain: 1,
            name: u32::MAX,
        },
        What::Range {
            kind: RangeKind::StartEnd,
            domain: u32::MAX,
            name: 0,
        },
        What::Mark { domain: 3, name: 4 },
        What::Gc {
            generation: 2,
            collected: 12_345,
        },
        What::GilWait,
        What::GilHold,
        What::GilForced,
        What::Function { name: 77 },
        What::GpuSpan {
            device: 15,
            stream: 4095,
            iteration: u64::MAX,
        },
        What::Dropped { events: u64::MAX },
        What::GpuKernel {
            device: 15,
            stream: 4095,
            name: u32::MAX,
            correlation: 7,
        },
        What::GpuCopy {
            device: 1,
            stream: 2,
            kind: CopyKind::PeerToPeer,
            bytes: (1 << 60) - 1,
        },
        What::GpuSet {
            device: 3,
            stream: 4,
            bytes: u64::MAX,
        },
        What::KernelWindow {
            edge: Edge::Close,
            iteration: 119,
        },
        What::KernelSample {
            steps: 20,
            every_ms: 60_000,
            iteration: u32::MAX,
        },
        What::Past {
            iteration: u64::MAX,
        },
        What::Scope {
            id: (1 << 24) - 1,
            parent: 0x12_3456,
            name: u32::MAX,
        },
        What::GraphNodes {
            graph: (1 << 20) - 1,
            first: 0x12345,
            count: u16::MAX,
            scope: (1 << 24) - 1,
        },
        What::GraphExec {
            state: Some(GraphState::Known),
            exec: u32::MAX,
            graph: 3,
        },
        What::KernelNode {
            device: 15,
            stream: 4095,
            exec: u32::MAX,
            node: 7,
        },
        What::InScope { scope: 9 },
        What::OutsideBefore {
            bucket: 900,
            iterations: 1 << 40,
        },
        What::GpuMetric {
            device: 7,
            metric: Some(Metric::DramBandwidth),
            thousandths: 91_500,
        },
        What::GpuMetric {
            device: 7,
            metric: None,
            thousandths: 0,
        },
        What::GpuProcess {
            device: 15,
            owner: GpuOwner::Other,
            sm: Some(100),
            name: u32::MAX,
            pid: 1 << 22,
        },
        What::GpuProcess {
            device: 0,
            owner: GpuOwner::Unknown,
            sm: None,
            name: 0,
            pid: 0,
        },
        What::ThreadNode {
            node: u16::MAX,
            pid: 1 << 22,
            tid: u32::MAX,
        },
        What::ExpertLoad {
            layer: 60,
            expert: 255,
            tokens: (1 << 48) - 1,
        },
        What::Batch {
            iteration: u16::MAX,
            batch: Batch::new(65_535, (1 << 24) - 1, 1 << 23).unwrap(),
        },
        What::Batch {
            iteration: 1,
            batch: Batch::new(0, 0, 0).unwrap(),
        },
        What::Frame {
            id: (1 << 24) - 1,
            parent: 1 << 23,
            name: u32::MAX,
        },
        What::Frame {
            id: 1 << 16,
            parent: 0,
            name: 7,
        },
        What::Sample {
            taken: Taken::Native,
            state: Some(ThreadState::Runnable),
            thread: u32::MAX,
            frame: (1 << 24) - 1,
        },
        What::Sample {
            taken: Taken::Torn,
            state: None,
            thread: 1,
            frame: 0,
        },
        What::Asleep {
            call: Some(SystemCall::FileControl),
            has_timeout: true,
            has_short_timeout: true,
            continues: false,
            thread: u32::MAX,
            frame: (1 << 24) - 1,
        },
        What::Asleep {
            call: Some(SystemCall::Other),
            has_timeout: false,
            has_short_timeout: false,
            continues: true,
            thread: 1,
            frame: 0,
        },
        What::Meanwhile {
            task: Task::Child,
            is_busy: false,
            has_run: true,
            is_awaited: true,
            call: Some(SystemCall::FileControl),
            name: u32::MAX,
            id: u32::MAX,
        },
        What::Meanwhile {
            task: Task::Thread,
            is_busy: true,
            has_run: false,
            is_awaited: false,
            call: None,
            name: 0,
            id: 1,
        },
        What::HostFunction {
            name: u32::MAX,
            count: 7,
        },
        What::Used {
            what: Some(Used::Disk),
            iteration: u32::MAX,
            count: 1 << 31,
        },
        What::Used {
            what: Some(Used::Ran),
            iteration: 0,
            count: 1,
        },
    ];
    for what in all {
        for flags in 0..4 {
            let event = Event {
                start: 0x0123_4567_89ab_cdef,
                duration: 0xffff_ffff,
                cut: flags & 1 != 0,
                failed: flags & 2 != 0,
                what,
            };
            assert_eq!(Event::decode(&event.encode()), Ok(event));
        }
    }
}

#[test]
fn whatever_is_read_is_written_the_same() {
    let values = [0, 1, u64::MAX, 0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];
    for kind in EventKind::ALL {
        let mut found = 0;
        for (code, value) in (0..=u16::MAX).flat_map(|code| values.map(|value| (code, value))) {
            let mut bytes = Event::new(7, 9, What::GilHold).encode();
            bytes[12] = *kind as u8;
            bytes[14..16].copy_from_slice(&code.to_le_bytes());
            bytes[16..].copy_from_slice(&value.to_le_bytes());
            let Ok(event) = Event::decode(&bytes) else {
                continue;
            };
            found += 1;
            assert_eq!(event.what.kind(), *kind);
            assert_eq!(Event::decode(&event.encode()), Ok(event));
        }
        assert!(found > 0, "{kind:?}");
    }
}

#[test]
fn long_durations_keep_their_upper_32_bits() {
    for bit in 0..64 {
        let duration = u64::MAX >> bit;
        let event = Event::new(0, duration, What::GilHold);
        let back = Event::decode(&event.encode()).unwrap().duration;
        assert!(back <= duration);
        assert!(duration - back <= duration >> 31, "{duration}: {back}");
    }
}

#[test]
fn an_event_is_where_the_page_says() {
    let event = Event {
        start: 0x0807_0605_0403_0201,
        duration: 0x1_0000_0000,
        cut: true,
        failed: true,
        what: What::Call {
            row: 0x11,
            capturing: true,
            stream: 0x2827_2625_2423_2221,
        },
    };
    let bytes = event.encode();
    assert_eq!(bytes[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(
        bytes[8..16],
        [0, 0, 0, 0x80, EventKind::Call as u8, 0xc1, 0x11, 1]
    );
    assert_eq!(
        bytes[16..],
        [0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28]
    );
}

#[test]
fn what_is_none_is_said() {
    let decode = |change: fn(&mut [u8; EVENT_BYTES])| {
        let mut bytes = Event::new(1, 2, What::GilHold).encode();
        change(&mut bytes);
        Event::decode(&bytes)
    };
    assert!(decode(|_| ()).is_ok());
    assert_eq!(decode(|bytes| bytes[12] = 0), Err(NoEvent::Unknown));
    assert_eq!(decode(|bytes| bytes[12] = 200), Err(NoEvent::Unknown));
    assert_eq!(decode(|bytes| bytes[13] = 33), Err(NoEvent::Bad));
    let window =
        |bytes: &mut [u8; EVENT_BYTES]| (bytes[12], bytes[14]) = (EventKind::Window as u8, 2);
    assert_eq!(decode(window), Err(NoEvent::Bad));
    // These bytes claim more prompt tokens than tokens, which is impossible for a batch.
    let batch =
        |bytes: &mut [u8; EVENT_BYTES]| (bytes[12], bytes[16]) = (EventKind::Batch as u8, 1);
    assert_eq!(decode(batch), Err(NoEvent::Bad));
}
