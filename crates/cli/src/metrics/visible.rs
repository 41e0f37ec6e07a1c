//! Determines which GPUs a program sees, and which numbers they have in CUDA.
//!
//! Source: the section on environment variables of the CUDA programming guide.

/// The largest number of GPUs that a record can contain.
const DEVICES: usize = 16;

/// A GPU of the machine, as NVML lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Listed {
    /// The GPU's UUID in the form that `nvidia-smi -L` prints.
    pub uuid: String,
    pub name: String,
    /// PCI domain, bus and device of the GPU.
    pub pci: [u32; 3],
}

/// The environment variables that determine the numbers of GPUs in CUDA.
#[derive(Clone, Default, Debug)]
pub(super) struct VisibilityVariables {
    /// The value of `CUDA_VISIBLE_DEVICES`. `None` if it is not set.
    pub devices: Option<String>,
    /// The value of `CUDA_DEVICE_ORDER`. `None` if it is not set.
    pub order: Option<String>,
}

/// Returns the visible GPUs as indices into `gpus`, in the order of their CUDA numbers. Also returns messages for the
/// user, for example about numbers that are uncertain.
pub(super) fn visible(gpus: &[Listed], asked: &VisibilityVariables) -> (Vec<usize>, Vec<String>) {
    let mut notes = Vec::new();
    // CUDA numbers GPUs of the same model by their PCI addresses, but by default puts the fastest GPU first. So the
    // numbers are certain only if all GPUs are of one model, or if the user requested the order of PCI addresses.
    let mut by_bus: Vec<usize> = (0..gpus.len()).collect();
    by_bus.sort_by_key(|place| gpus[*place].pci);
    let is_sure = asked.order.as_deref() == Some("PCI_BUS_ID")
        || gpus.windows(2).all(|pair| pair[0].name == pair[1].name);
    let mut by_number = false;
    let mut order = Vec::new();
    match &asked.devices {
        None => (by_number, order) = (true, by_bus),
        Some(list) => {
            for item in list.split(',').map(str::trim) {
                by_number |= item.parse::<usize>().is_ok();
                if item.starts_with("MIG-") {
                    notes.push(format!(
                        "GPU metrics: {item} is a part of a GPU, which is not sampled"
                    ));
                }
                // As in CUDA, GPUs after the first invalid item of the list are not visible.
                match place(gpus, &by_bus, item) {
                    Some(place) if !order.contains(&place) => order.push(place),
                    _ => break,
                }
            }
        }
    }
    if by_number && !is_sure && !order.is_empty() {
        notes.push(
            "GPU metrics: GPUs of different kinds are taken to be numbered by their PCI addresses; \
             CUDA_DEVICE_ORDER=PCI_BUS_ID has CUDA do so, too"
                .to_owned(),
        );
    }
    if order.len() > DEVICES {
        notes.push(format!(
            "GPU metrics: of {} GPUs the first {DEVICES} alone are sampled",
            order.len()
        ));
        order.truncate(DEVICES);
    }
    (order, notes)
}

/// Returns the GPU for an item of `CUDA_VISIBLE_DEVICES`: a number, or the beginning of a UUID that
/// only one GPU has.
fn place(gpus: &[Listed], by_bus: &[usize], item: &str) -> Option<usize> {
    if let Ok(number) = item.parse::<usize>() {
        return by_bus.get(number).copied();
    }
    if !item.starts_with("GPU-") {
        return None;
    }
    let mut fit = (0..gpus.len()).filter(|place| gpus[*place].uuid.starts_with(item));
    fit.next().filter(|_| fit.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(names: [&str; 3]) -> Vec<Listed> {
        let listed = |(at, name): (usize, &&str)| Listed {
            uuid: ["GPU-aa11", "GPU-ab22", "GPU-cc33"][at].to_owned(),
            name: (*name).to_owned(),
            // In this test, the order of the GPUs' PCI addresses differs from the order in which NVML lists the GPUs.
            pci: [0, [0x40, 0x10, 0x20][at], 0],
        };
        names.iter().enumerate().map(listed).collect()
    }

    fn order(devices: &str) -> Vec<usize> {
        let asked = VisibilityVariables {
            devices: Some(devices.to_owned()),
            order: None,
        };
        visible(&gpus(["H"; 3]), &asked).0
    }

    #[test]
    fn numbers_go_by_address() {
        let (all, notes) = visible(&gpus(["H"; 3]), &VisibilityVariables::default());
        assert_eq!((all, notes.len()), (vec![1, 2, 0], 0));
        assert_eq!(order("2"), [0]);
        assert_eq!(order("2, 0"), [0, 1]);
    }

    #[test]
    fn what_is_behind_something_wrong_is_not_visible() {
        assert_eq!(order("0,-1,1"), [1]);
        assert_eq!(order("1,7,0"), [2]);
        assert_eq!(order("0,0,1"), [1]);
        assert!(order("").is_empty() && order("none").is_empty());
    }

    #[test]
    fn the_start_of_an_identifier_is_enough_if_one_has_it() {
        assert_eq!(order("GPU-cc,GPU-aa11"), [2, 0]);
        assert!(order("GPU-a").is_empty());
        assert!(order("GPU-dd").is_empty());
        let asked = VisibilityVariables {
            devices: Some("0,MIG-1234,1".to_owned()),
            order: None,
        };
        let (order, notes) = visible(&gpus(["H"; 3]), &asked);
        assert_eq!((order, notes.len()), (vec![1], 1));
    }

    #[test]
    fn different_kinds_are_an_assumption_unless_the_order_is_set() {
        let mixed = gpus(["H", "H", "L"]);
        let notes = |devices: Option<&str>, order: Option<&str>| {
            let asked = VisibilityVariables {
                devices: devices.map(str::to_owned),
                order: order.map(str::to_owned),
            };
            visible(&mixed, &asked).1.len()
        };
        assert_eq!(notes(None, None), 1);
        assert_eq!(notes(Some("1"), Some("FASTEST_FIRST")), 1);
        assert_eq!(notes(None, Some("PCI_BUS_ID")), 0);
        assert_eq!(notes(Some("GPU-cc33"), None), 0);
        assert_eq!(notes(Some(""), None), 0);
    }
}
