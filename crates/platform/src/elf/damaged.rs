//! Tests of modules with damaged tables. Reading such tables may give no values or wrong values, but must not crash.
//! A preloaded library meets libraries that packers and protectors have changed. The loader can use the tables of such
//! libraries, but parts that the loader does not read may be damaged.

use core::ffi::CStr;
use core::sync::atomic::Ordering;

use libc::{Elf64_Phdr, PF_R, PT_DYNAMIC, PT_LOAD, dl_phdr_info};

use super::{Description, Dyn, ElfModule, walk};

const NAMES: [&CStr; 4] = [c"_Unwind_Resume", c"malloc", c"no such function", c""];
const VERSIONS: [Option<&CStr>; 3] = [None, Some(c"GCC_3.0"), Some(c"no version")];
/// The number of damaged modules to test, unless `TLLMPROF_TEST_DAMAGE` sets another number.
const CHANGED: u64 = 2000;

/// A copy of a loaded module's memory, which the tests damage.
struct Copy {
    bytes: Vec<u64>,
    headers: Vec<Elf64_Phdr>,
    /// `start` is the lowest virtual address in the module's program headers. `dynamic` is the offset of the dynamic
    /// section in the copy.
    start: usize,
    dynamic: usize,
}

impl Copy {
    fn from_module(module: &ElfModule) -> Self {
        let mut bytes = vec![0_u64; (module.end - module.start).div_ceil(8)];
        let headers = module.headers().to_vec();
        let mut copy = Self {
            start: module.start - module.base,
            dynamic: 0,
            headers,
            bytes: Vec::new(),
        };
        for header in &copy.headers {
            let at = header.p_vaddr as usize;
            if header.p_type == PT_DYNAMIC {
                copy.dynamic = at - copy.start;
            }
            if header.p_type != PT_LOAD || header.p_flags & PF_R == 0 {
                continue;
            }
            let mut segment = vec![0; header.p_memsz as usize];
            assert!(module.memory.read(module.base + at, &mut segment));
            let begin = at - copy.start;
            for (offset, byte) in segment.iter().enumerate() {
                let place = begin + offset;
                bytes[place / 8] |= u64::from(*byte) << (place % 8 * 8);
            }
        }
        copy.bytes = bytes;
        copy.move_tables(module);
        copy
    }

    fn address(&self) -> usize {
        self.bytes.as_ptr().expose_provenance()
    }

    /// Changes the addresses in the copy's dynamic section, which the loader has made absolute, so that they
    /// lead to tables in the copy.
    fn move_tables(&mut self, module: &ElfModule) {
        let to = self.address();
        for entry in self.bytes[self.dynamic / 8..].as_chunks_mut::<2>().0 {
            if entry[0] == 0 {
                return;
            }
            let value = entry[1] as usize;
            if module.contains(value) {
                entry[1] = (value - module.start + to) as u64;
            }
        }
    }

    /// Reads the copy as a module, and runs `look` on that module (`None` if the copy cannot be read as a module).
    fn with<T>(&self, look: impl FnOnce(Option<&ElfModule>) -> T) -> T {
        // SAFETY: the description consists of numbers and pointers, for which zeros are valid values.
        let mut info: dl_phdr_info = unsafe { core::mem::zeroed() };
        info.dlpi_addr = self.address().wrapping_sub(self.start) as u64;
        info.dlpi_name = c"damaged".as_ptr();
        info.dlpi_phdr = self.headers.as_ptr();
        info.dlpi_phnum = self.headers.len() as u16;
        look(ElfModule::new(Description(&info)).as_ref())
    }

    fn set(&mut self, at: usize, byte: u8) {
        let shift = at % 8 * 8;
        let word = &mut self.bytes[at / 8];
        *word = *word & !(0xff << shift) | u64::from(byte) << shift;
    }
}

/// Reads all tables of a module. Returns a number that is larger the more of the tables could be read.
fn read_all(module: &ElfModule) -> usize {
    let mut seen = usize::from(module.soname().is_some());
    module.each_needed(|name| seen += name.to_bytes().len());
    module.each_slot(
        |_| true,
        |slot| {
            seen += slot.name.to_bytes().len() + usize::from(slot.version.is_some());
            seen += slot.place.load(Ordering::Relaxed) & 1;
        },
    );
    for name in NAMES {
        for version in VERSIONS {
            seen += usize::from(module.definition(name, version).is_some());
        }
        seen += usize::from(module.wants(name).is_some()) + usize::from(module.asks_for(name));
    }
    seen + usize::from(module.is_bound()) + usize::from(module.runs_early())
}

/// Returns a copy of libgcc_s, which is small and has all types of tables, and the offset of its function `NAMES[0]`
/// from the module's start.
fn small() -> (Copy, usize) {
    let mut found = None;
    walk(|module| {
        if module.soname() == Some(c"libgcc_s.so.1") {
            let defines = module.definition(NAMES[0], None).expect("its function");
            found = Some((Copy::from_module(module), defines.address - module.start));
        }
        found.is_some()
    });
    found.expect("libgcc_s.so.1 is among the test's libraries")
}

/// Random number generator (xorshift64) with a fixed seed, so that the damage is the same in each run.
fn random(state: &mut u64, below: usize) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as usize % below
}

#[test]
fn a_copy_is_read_as_the_module() {
    let (copy, offset) = small();
    copy.with(|module| {
        let module = module.expect("a module");
        assert_eq!(module.soname(), Some(c"libgcc_s.so.1"));
        let found = module.definition(NAMES[0], None).expect("its function");
        assert_eq!(found.address, copy.address() + offset);
        assert!(module.definition(NAMES[0], Some(c"GCC_3.0")).is_some());
        assert!(module.definition(NAMES[2], None).is_none());
        assert!(module.asks_for(c"malloc"));
        assert!(read_all(module) > 100);
    });
}

#[test]
fn damaged_tables_are_survived() {
    let (mut copy, _) = small();
    let whole = copy.bytes.clone();
    let changed = std::env::var("TLLMPROF_TEST_DAMAGE").map_or(CHANGED, |n| n.parse().unwrap());
    // Only the start of the module and its dynamic section are damaged: the tables come first in the module,
    // and the dynamic section has their addresses.
    let tables = 16 * 1024;
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let mut unread = 0;
    for _ in 0..changed {
        copy.bytes.copy_from_slice(&whole);
        for _ in 0..=random(&mut state, 6) {
            let (from, length) = match random(&mut state, 2) {
                0 => (copy.dynamic, 40 * size_of::<Dyn>()),
                _ => (0, tables),
            };
            let at = from + random(&mut state, length);
            let byte = [0, 0xff, random(&mut state, 256) as u8][random(&mut state, 3)];
            // Overwrite one to eight bytes of a table or of the dynamic section.
            let width = 1 << random(&mut state, 4);
            (at..at + width).for_each(|at| copy.set(at, byte));
        }
        unread += copy.with(|module| usize::from(module.is_none_or(|one| read_all(one) < 20)));
    }
    assert!(unread > 0, "no damage was seen");
}

/// Tests that a lookup in a System V hash table (not GNU's) ends, even if a hash chain of the table is circular.
#[test]
fn a_chain_that_never_ends_is_left() {
    let (mut copy, _) = small();
    let table = copy.bytes.len() * 8 - 64;
    let address = copy.address() + table;
    for entry in copy.bytes[copy.dynamic / 8..].as_chunks_mut::<2>().0 {
        match entry[0].cast_signed() {
            0 => break,
            super::DT_GNU_HASH => *entry = [super::DT_HASH.cast_unsigned(), address as u64],
            _ => {}
        }
    }
    // The table has one bucket and three chain entries. The bucket points to symbol 1, and symbol 1
    // points to itself.
    let words = [1_u32, 3, 1, 0, 1, 0].map(u32::to_le_bytes);
    for (at, byte) in (table..).zip(words.into_iter().flatten()) {
        copy.set(at, byte);
    }
    copy.with(|module| {
        let module = module.expect("a module");
        assert!(module.definition(NAMES[2], None).is_none());
    });
}

/// Tests that a lookup does not read beyond the segment if the GNU hash table has a wrong index of the first hashed
/// symbol: 2^32 - 1, so that billions of symbols before it seem to be undefined ones.
#[test]
fn a_count_beyond_the_segment_is_not_believed() {
    let (mut copy, _) = small();
    let mut hash = 0;
    for entry in copy.bytes[copy.dynamic / 8..].as_chunks::<2>().0 {
        match entry[0].cast_signed() {
            0 => break,
            super::DT_GNU_HASH => hash = entry[1] as usize - copy.address(),
            _ => {}
        }
    }
    (hash + 4..hash + 8).for_each(|at| copy.set(at, 0xff));
    copy.with(|module| {
        let module = module.expect("a module");
        assert!(!module.asks_for(c"no such function"));
    });
}
