//! A table of the kernel names that identify collectives.
//!
//! Each name was read in the source code of its library, or in a trace of a program that uses the library.
//! `docs/ranks.md` shows the table to users, and a test checks that the two are the same.

/// The operation that a collective performs, such as an all-reduce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    AllToAll,
    /// A point-to-point transfer, or an all-to-all that consists of point-to-point transfers.
    SendReceive,
    /// An all-to-all that sends each token to the ranks that hold its experts (mixture of experts).
    Dispatch,
    /// An all-to-all that sends the experts' results back to the ranks of the tokens.
    Combine,
    Barrier,
    /// An unknown operation: several operations share this kernel, so the kernel's name does not
    /// say which of them ran.
    Some,
}

impl Operation {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllToAll => "all-to-all",
            Self::SendReceive => "send/receive",
            Self::Dispatch => "dispatch",
            Self::Combine => "combine",
            Self::Barrier => "barrier",
            Self::Some => "some collective",
        }
    }

    /// Returns true if the collective synchronizes its ranks, which means that the collective cannot end on any rank
    /// before it has begun on all ranks. A broadcast does not synchronize them: its root does not wait for other ranks.
    /// A reduce does not, either: the ranks that send to the root do not wait.
    pub(crate) const fn meets(self) -> bool {
        !matches!(self, Self::Broadcast | Self::Reduce)
    }
}

/// A row of the table: a pattern for the names of kernels that perform one operation of one library.
#[derive(Debug)]
pub(crate) struct CollectivePattern {
    /// The last components of the kernel's qualified name, without template arguments and
    /// parameters. `*` at the end stands for any further characters.
    pub name: &'static str,
    pub library: &'static str,
    pub operation: Operation,
}

const fn row(name: &'static str, library: &'static str, operation: Operation) -> CollectivePattern {
    CollectivePattern {
        name,
        library,
        operation,
    }
}

const NCCL: &str = "NCCL";
const RCCL: &str = "RCCL";
const NCCL_RCCL: &str = "NCCL, RCCL";
const CUSTOM: &str = "vLLM, SGLang";
const QUICK: &str = "quick all-reduce";
const FUSED: &str = "FlashInfer, TensorRT-LLM";
const TRTLLM: &str = "TensorRT-LLM";
const TORCH: &str = "PyTorch";
const DEEP_EP: &str = "DeepEP";
const NVSHMEM: &str = "NVSHMEM";
const TE: &str = "Transformer Engine";

/// The table of kernel names. If several rows match a kernel's name, the first of these rows
/// applies.
pub(crate) const ROWS: &[CollectivePattern] = {
    use Operation::{
        AllGather, AllReduce, AllToAll, Barrier, Broadcast, Combine, Dispatch, Reduce,
        ReduceScatter, SendReceive, Some,
    };
    &[
        row("ncclDevKernel_AllReduce_*", NCCL, AllReduce),
        row("ncclDevKernel_AllGather*", NCCL, AllGather),
        row("ncclDevKernel_ReduceScatter_*", NCCL, ReduceScatter),
        row("ncclDevKernel_Broadcast_*", NCCL, Broadcast),
        row("ncclDevKernel_Reduce_*", NCCL, Reduce),
        row("ncclDevKernel_SendRecv*", NCCL, SendReceive),
        row("ncclDevKernel_Generic*", NCCL_RCCL, Some),
        row("ncclKernel_AllReduce_*", NCCL, AllReduce),
        row("ncclKernel_AllGather_*", NCCL, AllGather),
        row("ncclKernel_ReduceScatter_*", NCCL, ReduceScatter),
        row("ncclKernel_Broadcast_*", NCCL, Broadcast),
        row("ncclKernel_Reduce_*", NCCL, Reduce),
        row("ncclKernel_SendRecv_*", NCCL, SendReceive),
        row("ncclSymkDevKernel_AllReduce_*", NCCL, AllReduce),
        row("ncclSymkDevKernel_AllGather_*", NCCL, AllGather),
        row("ncclSymkDevKernel_ReduceScatter_*", NCCL, ReduceScatter),
        row("ncclSymDevKernel_AllReduce_*", NCCL, AllReduce),
        row("ncclSymDevKernel_AllGather_*", NCCL, AllGather),
        row("ncclSymDevKernel_ReduceScatter_*", NCCL, ReduceScatter),
        row("mscclKernel_*", RCCL, Some),
        row("cross_device_reduce_1stage*", CUSTOM, AllReduce),
        row("cross_device_reduce_2stage*", CUSTOM, AllReduce),
        row("allreduce_prototype_twoshot", QUICK, AllReduce),
        row("allreduce_fusion_kernel_oneshot_lamport", FUSED, AllReduce),
        row("allreduce_fusion_kernel_twoshot_sync", FUSED, AllReduce),
        row(
            "moereduce_allreduce_fusion_kernel_oneshot_lamport",
            FUSED,
            AllReduce,
        ),
        row(
            "moefinalize_allreduce_fusion_kernel_oneshot_lamport",
            FUSED,
            AllReduce,
        ),
        row("oneshotAllreduceFusionKernel", FUSED, AllReduce),
        row("twoshotAllreduceKernel", FUSED, AllReduce),
        row("moeA2ADispatchKernel", FUSED, Dispatch),
        row("moeA2ACombineKernel", FUSED, Combine),
        row("oneShotAllReduceKernel", TRTLLM, AllReduce),
        row("twoShotAllReduceKernel", TRTLLM, AllReduce),
        row("lowPrecisionTwoShotAllReduceKernel", TRTLLM, AllReduce),
        row("one_shot_all_reduce_norm_kernel", FUSED, AllReduce),
        row(
            "lamport_style_one_shot_all_reduce_norm_kernel",
            FUSED,
            AllReduce,
        ),
        row("one_shot_all_reduce_kernel", TORCH, AllReduce),
        row("two_shot_all_reduce_kernel", TORCH, AllReduce),
        row("two_shot_all_reduce_kernel_inplace", TORCH, AllReduce),
        row("multimem_all_reduce_kernel", TORCH, AllReduce),
        row("multimem_one_shot_all_reduce_kernel", TORCH, AllReduce),
        row("multimem_all_gather_kernel", TORCH, AllGather),
        row("deep_ep::internode_ll::dispatch", DEEP_EP, Dispatch),
        row("deep_ep::internode_ll::combine", DEEP_EP, Combine),
        row("deep_ep::intranode::dispatch", DEEP_EP, Dispatch),
        row("deep_ep::intranode::combine", DEEP_EP, Combine),
        row("deep_ep::intranode::notify_dispatch", DEEP_EP, Barrier),
        row("deep_ep::internode::notify_dispatch", DEEP_EP, Barrier),
        row("barrier_on_stream_kernel*", NVSHMEM, Barrier),
        row("sync_on_stream_kernel*", NVSHMEM, Barrier),
        row("sync_all_on_stream_kernel*", NVSHMEM, Barrier),
        row("rdxn_on_stream_kernel", NVSHMEM, AllReduce),
        row("reducescatter_on_stream_kernel", NVSHMEM, ReduceScatter),
        row("fcollect_on_stream_kernel", NVSHMEM, AllGather),
        row("alltoall_on_stream_kernel", NVSHMEM, AllToAll),
        row("broadcast_on_stream_kernel", NVSHMEM, Broadcast),
        row("userbuffers_fp16_sum_inplace_gpu_rw", TE, AllReduce),
        row("userbuffers_fp16_sum_inplace_gpu_mc", TE, AllReduce),
        row("userbuffers_fp16_sum_inplace_gpu_rw_ag", TE, AllGather),
        row(
            "userbuffers_fp16_sum_inplace_gpu_rr_rs_*",
            TE,
            ReduceScatter,
        ),
    ]
};

impl CollectivePattern {
    /// Returns the index of the table's first row with the same operation and library as this row.
    /// Reports add up the collectives of all rows with that operation and library.
    pub(crate) fn first(&self) -> u8 {
        let is_same = |row: &CollectivePattern| {
            row.library == self.library && row.operation == self.operation
        };
        ROWS.iter().position(is_same).unwrap_or(0) as u8
    }

    /// Returns true if the collectives that this row recognizes belong to a communicator of NCCL or
    /// RCCL.
    pub(crate) fn is_of_communicator(&self) -> bool {
        [NCCL, RCCL, NCCL_RCCL].contains(&self.library)
    }

    /// Returns true if the collectives that this row recognizes run in groups of ranks that the
    /// inference engine creates itself.
    pub(crate) fn is_of_engine(&self) -> bool {
        [CUSTOM, QUICK, FUSED, TRTLLM].contains(&self.library)
    }
}

/// Returns the index of the table's first row that matches a kernel, or `None` if the kernel is not a
/// collective. `path` is the kernel's demangled name without template arguments and parameters.
pub(crate) fn find_row(path: &str) -> Option<u8> {
    ROWS.iter()
        .position(|row| fits(row.name, path))
        .map(|at| at as u8)
}

fn fits(name: &str, path: &str) -> bool {
    match name.strip_suffix('*') {
        // A pattern that ends in `*` is compared only with the beginning of the last component of
        // the kernel's path.
        Some(start) => path
            .rsplit("::")
            .next()
            .is_some_and(|last| last.starts_with(start)),
        None => path
            .strip_suffix(name)
            .is_some_and(|before| before.is_empty() || before.ends_with("::")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::kernel_name::{full, path};

    #[track_caller]
    fn found(name: &str) -> Option<(&'static str, Operation)> {
        let row = find_row(&path(&full(name)))?;
        let row = &ROWS[usize::from(row)];
        Some((row.library, row.operation))
    }

    #[test]
    fn names_as_traces_have_them() {
        use Operation::*;
        for (name, library, operation) in [
            (
                "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                NCCL,
                AllReduce,
            ),
            (
                "_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorageILm4096EE",
                NCCL,
                AllReduce,
            ),
            ("ncclDevKernel_Reduce_Sum_bf16_RING_LL", NCCL, Reduce),
            (
                "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL",
                NCCL,
                ReduceScatter,
            ),
            ("ncclDevKernel_AllGather_RING_LL", NCCL, AllGather),
            (
                "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
                NCCL,
                SendReceive,
            ),
            (
                "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
                "NCCL, RCCL",
                Some,
            ),
            (
                "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
                NCCL,
                AllReduce,
            ),
            (
                "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)",
                NCCL,
                AllReduce,
            ),
            ("ncclSymkDevKernel_AllGather_STMC", NCCL, AllGather),
            (
                "mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
                RCCL,
                Some,
            ),
            (
                "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals, \
                 vllm::Signal*, __nv_bfloat16*, int, int)",
                CUSTOM,
                AllReduce,
            ),
            (
                "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(flashinfer::\
                 trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, false, false>(flashinfer::\
                 trtllm_allreduce_fusion::AllReduceFusionParams<__nv_bfloat16>)",
                FUSED,
                AllReduce,
            ),
            (
                "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(c10::BFloat16**, \
                 unsigned long, unsigned long, unsigned int**, unsigned long, unsigned long)",
                TORCH,
                AllReduce,
            ),
            (
                "void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*, float*, int*, long*)",
                DEEP_EP,
                Dispatch,
            ),
            (
                "void deep_ep::internode::notify_dispatch<false, 4>(int const*, int*)",
                DEEP_EP,
                Barrier,
            ),
            (
                "void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)",
                NVSHMEM,
                Barrier,
            ),
        ] {
            assert_eq!(found(name), Option::Some((library, operation)), "{name}");
        }
    }

    #[test]
    fn other_kernels_are_none() {
        for name in [
            "",
            "gemm",
            "dispatch<int>(int)",
            "void at::native::reduce_kernel<512, 1>(int)",
            "void cub::DeviceReduceKernel<int>()",
            "my_oneShotAllReduceKernel",
            "ncclDevFunc_Nop",
            "void other::combine<int>(int)",
            "void k<deep_ep::internode_ll::dispatch>(int)",
        ] {
            assert_eq!(found(name), Option::None, "{name}");
        }
    }

    #[test]
    fn the_page_has_the_table() {
        let rows = ROWS.iter().map(|row| {
            let CollectivePattern {
                name,
                library,
                operation,
            } = row;
            format!("| `{name}` | {library} | {} |\n", operation.name())
        });
        let head = "| kernel | library | operation |\n|---|---|---|\n";
        let table = head.to_owned() + &rows.collect::<String>();
        let page = include_str!("../../../../docs/ranks.md");
        assert!(
            page.contains(&table),
            "docs/ranks.md must hold this table:\n{table}"
        );
    }

    #[test]
    fn each_row_is_reached() {
        for (at, row) in ROWS.iter().enumerate() {
            assert_eq!(
                find_row(&row.name.replace('*', "x")),
                Option::Some(at as u8),
                "{}",
                row.name
            );
        }
    }
}
