//! The table of the CUDA calls that tllmprof knows.

use crate::kind::CallPurpose::{
    AsyncCopy, CaptureBegin, CaptureEnd, Compilation, Destroys, DeviceWork as Within, Graph,
    GraphLaunch, HostFunction, KernelLaunch, Memory, Profiler,
};
use crate::kind::Destroyed::{Context, Primary};
use crate::kind::Direction::{Other, ToDevice, ToHost};
use crate::kind::Stream::{Configured, Word};
use crate::kind::{CallPurpose, Destroyed, DeviceWork, GraphCall, Stream, Wait};

/// One row of the table: a call with all facts about it.
#[derive(Debug)]
pub struct CallInfo {
    pub call: Call,
    pub kind: CallPurpose,
    /// Symbols of libcuda for the call. Messages use the first one.
    pub driver: &'static [&'static str],
    /// Symbols of libcudart for the call. Messages use the first one.
    pub runtime: &'static [&'static str],
    /// The position of the stream argument, first in the driver's function and then in the runtime's. The profiler
    /// measures the GPU time of calls that enqueue work and have a stream.
    pub stream: [Stream; 2],
    /// Index of the argument with the number of bytes, in the driver's function. It is set for copies that programs
    /// often make small, and `None` for other calls. The profiler does not measure the GPU time of a small copy,
    /// because the measurement would take longer than the copy.
    pub small_by: Option<u8>,
    /// True if the row describes only calls of the runtime function with `cudaMemcpyDeviceToHost`. The fourth argument
    /// of that function is a `cudaMemcpyKind`.
    pub device_to_host_only: bool,
}

impl CallInfo {
    /// Returns all symbols of the row: those of the driver, then those of the runtime.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.driver.iter().chain(self.runtime).copied()
    }
}

/// Expands the macro `$then!` with the contents of the table. Three lists in brackets come first: the driver's
/// look-up functions, the functions of CUPTI, and those of NCCL. Then comes every row: `Variant = kind, [driver's
/// names] [runtime's names] { other fields };`.
///
/// The other fields are those of [`CallInfo`](crate::CallInfo), with the defaults in [`PLAIN`]. Messages use the
/// first name of each list. Rows for copies to the device list only driver functions, for two reasons: the runtime's
/// functions call these, and only the driver knows the direction of a copy with `cudaMemcpyDefault`. The row of
/// `cuStreamWaitEvent` also lists only driver functions, which keeps the library small.
#[macro_export]
macro_rules! cuda_calls {
    ($then:ident) => {
        $then! {
            [cuGetProcAddress cuGetProcAddress_v2]
            [Subscribe = cuptiSubscribe cuptiSubscribe_v2;
             Unsubscribe = cuptiUnsubscribe;
             Register = cuptiActivityRegisterCallbacks cuptiActivityRegisterCallbacks_v2;
             Finalize = cuptiFinalize;]
            [InitRank = ncclCommInitRank ncclCommInitRankConfig;
             InitRankScalable = ncclCommInitRankScalable;
             InitAll = ncclCommInitAll;
             Split = ncclCommSplit;
             AsyncError = ncclCommGetAsyncError;
             Destroy = ncclCommDestroy ncclCommAbort;
             AllReduce = ncclAllReduce;
             Broadcast = ncclBroadcast;
             BroadcastInPlace = ncclBcast;
             Reduce = ncclReduce;
             AllGather = ncclAllGather;
             ReduceScatter = ncclReduceScatter;
             AllToAll = ncclAlltoAll;
             Send = ncclSend;
             Receive = ncclRecv;]
            GraphLaunch = GraphLaunch,
                [cuGraphLaunch cuGraphLaunch_ptsz]
                [cudaGraphLaunch cudaGraphLaunch_ptsz]
                { stream: [Word(1); 2] };
            LaunchKernel = KernelLaunch { handle: 0 },
                [cuLaunchKernel cuLaunchKernel_ptsz]
                [cudaLaunchKernel cudaLaunchKernel_ptsz]
                { stream: [Word(8), DIM3_DIM3] };
            LaunchKernelEx = KernelLaunch { handle: 1 },
                [cuLaunchKernelEx cuLaunchKernelEx_ptsz]
                [cudaLaunchKernelExC cudaLaunchKernelExC_ptsz]
                { stream: [Configured(32); 2] };
            LaunchCooperativeKernel = KernelLaunch { handle: 0 },
                [cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz]
                [cudaLaunchCooperativeKernel cudaLaunchCooperativeKernel_ptsz]
                { stream: [Word(8), DIM3_DIM3] };
            MemcpyDtoHAsync = AsyncCopy(ToHost),
                [cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz cuMemcpyDtoHAsync]
                [cudaMemcpyAsync cudaMemcpyAsync_ptsz]
                { stream: [Word(3), Word(4)], device_to_host_only: true };
            MemcpyDtoH = CallPurpose::Wait(Wait::CopyToHost),
                [cuMemcpyDtoH_v2 cuMemcpyDtoH_v2_ptds cuMemcpyDtoH]
                [cudaMemcpy cudaMemcpy_ptds]
                { device_to_host_only: true };
            MemcpyHtoDAsync = AsyncCopy(ToDevice),
                [cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz cuMemcpyHtoDAsync] []
                { stream: [Word(3), Stream::None], small_by: Some(2) };
            MemcpyHtoD = AsyncCopy(ToDevice),
                [cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds cuMemcpyHtoD] [] {};
            MemcpyAsync = Within(DeviceWork::Copy),
                [cuMemcpyAsync cuMemcpyAsync_ptsz
                 cuMemcpyDtoDAsync_v2 cuMemcpyDtoDAsync_v2_ptsz cuMemcpyDtoDAsync] []
                { stream: [Word(3), Stream::None] };
            MemsetAsync = Within(DeviceWork::Set),
                [cuMemsetD8Async cuMemsetD8Async_ptsz cuMemsetD16Async cuMemsetD16Async_ptsz
                 cuMemsetD32Async cuMemsetD32Async_ptsz] []
                { stream: [Word(3), Stream::None] };
            StreamSynchronize = CallPurpose::Wait(Wait::Stream),
                [cuStreamSynchronize cuStreamSynchronize_ptsz]
                [cudaStreamSynchronize cudaStreamSynchronize_ptsz]
                { stream: [Word(0); 2] };
            EventSynchronize = CallPurpose::Wait(Wait::Event),
                [cuEventSynchronize]
                [cudaEventSynchronize] {};
            CtxSynchronize = CallPurpose::Wait(Wait::Context),
                [cuCtxSynchronize cuCtxSynchronize_v2]
                [cudaDeviceSynchronize] {};
            EventQuery = CallPurpose::Query(Wait::Event),
                [cuEventQuery]
                [cudaEventQuery] {};
            StreamQuery = CallPurpose::Query(Wait::Stream),
                [cuStreamQuery cuStreamQuery_ptsz]
                [cudaStreamQuery cudaStreamQuery_ptsz]
                { stream: [Word(0); 2] };
            StreamBeginCapture = CaptureBegin,
                [cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz
                 cuStreamBeginCapture cuStreamBeginCapture_ptsz]
                [cudaStreamBeginCapture cudaStreamBeginCapture_ptsz]
                { stream: [Word(0); 2] };
            StreamBeginCaptureToGraph = CaptureBegin,
                [cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz]
                [cudaStreamBeginCaptureToGraph cudaStreamBeginCaptureToGraph_ptsz]
                { stream: [Word(0); 2] };
            StreamEndCapture = CaptureEnd,
                [cuStreamEndCapture cuStreamEndCapture_ptsz]
                [cudaStreamEndCapture cudaStreamEndCapture_ptsz]
                { stream: [Word(0); 2] };
            MemAlloc = Memory,
                [cuMemAlloc_v2 cuMemAlloc]
                [cudaMalloc] {};
            MemFree = Memory,
                [cuMemFree_v2 cuMemFree]
                [cudaFree] {};
            MemHostAlloc = Memory,
                [cuMemHostAlloc cuMemAllocHost_v2 cuMemAllocHost]
                [cudaHostAlloc cudaMallocHost] {};
            MemFreeHost = Memory,
                [cuMemFreeHost]
                [cudaFreeHost] {};
            ModuleLoadData = Compilation,
                [cuModuleLoadData cuModuleLoadDataEx] [] {};
            ModuleLoad = Compilation,
                [cuModuleLoad] [] {};
            LibraryLoadData = Compilation,
                [cuLibraryLoadData]
                [cudaLibraryLoadData] {};
            LibraryLoadFromFile = Compilation,
                [cuLibraryLoadFromFile]
                [cudaLibraryLoadFromFile] {};
            ProfilerStart = Profiler,
                [cuProfilerStart]
                [cudaProfilerStart] {};
            ProfilerStop = Profiler,
                [cuProfilerStop]
                [cudaProfilerStop] {};
            StreamDestroy = Destroys(Destroyed::Stream),
                [cuStreamDestroy_v2 cuStreamDestroy]
                [cudaStreamDestroy] {};
            CtxDestroy = Destroys(Context),
                [cuCtxDestroy_v2 cuCtxDestroy] [] {};
            PrimaryCtxRelease = Destroys(Primary),
                [cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxRelease] [] {};
            PrimaryCtxReset = Destroys(Primary),
                [cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxReset]
                [cudaDeviceReset] {};
            GraphInstantiate = Graph(GraphCall::Instantiate),
                [cuGraphInstantiateWithFlags cuGraphInstantiateWithParams cuGraphInstantiateWithParams_ptsz
                 cuGraphInstantiate_v2 cuGraphInstantiate]
                [cudaGraphInstantiate cudaGraphInstantiateWithFlags
                 cudaGraphInstantiateWithParams cudaGraphInstantiateWithParams_ptsz] {};
            GraphClone = Graph(GraphCall::Clone),
                [cuGraphClone]
                [cudaGraphClone] {};
            GraphExecUpdate = Graph(GraphCall::Update),
                [cuGraphExecUpdate_v2 cuGraphExecUpdate]
                [cudaGraphExecUpdate] {};
            GraphAddNode = Graph(GraphCall::AddNode),
                [cuGraphAddNode_v2 cuGraphAddNode cuGraphAddKernelNode_v2 cuGraphAddKernelNode
                 cuGraphAddMemcpyNode cuGraphAddMemsetNode] [] {};
            GraphAddChildGraphNode = Graph(GraphCall::AddChild),
                [cuGraphAddChildGraphNode] [] {};
            GraphExecChildGraphNodeSetParams = Graph(GraphCall::SetChild),
                [cuGraphExecChildGraphNodeSetParams] [] {};
            GraphDestroy = Graph(GraphCall::Destroy),
                [cuGraphDestroy]
                [cudaGraphDestroy] {};
            GraphExecDestroy = Graph(GraphCall::DestroyExec),
                [cuGraphExecDestroy]
                [cudaGraphExecDestroy] {};
            StreamWaitEvent = CallPurpose::Order,
                [cuStreamWaitEvent cuStreamWaitEvent_ptsz] []
                { stream: [Word(0), Stream::None] };
            LaunchHostFunc = HostFunction,
                [cuLaunchHostFunc cuLaunchHostFunc_ptsz cuLaunchHostFunc_v2 cuLaunchHostFunc_v2_ptsz
                 cuStreamAddCallback cuStreamAddCallback_ptsz] []
                { stream: [Word(0), Stream::None] };
        }
    };
}

/// Position of the stream argument of `cudaLaunchKernel`. Its two `dim3` arguments, which come before the stream,
/// take two words each.
const DIM3_DIM3: Stream = Word(7);

/// Default values of the fields in a row of the table. Every row sets `call`, `kind` and the names itself.
const PLAIN: CallInfo = CallInfo {
    call: Call::GraphLaunch,
    kind: Memory,
    driver: &[],
    runtime: &[],
    stream: [Stream::None; 2],
    small_by: None,
    device_to_host_only: false,
};

macro_rules! table {
    (
        [$($look_up:ident)*]
        [$($cupti:ident = $($cupti_name:ident)*;)*]
        [$($nccl:ident = $($nccl_name:ident)*;)*]
        $($call:ident = $kind:expr, [$($driver:ident)*] [$($runtime:ident)*] {
            $($field:ident: $value:expr),*
        };)*
    ) => {
        /// A CUDA call, which may have several names.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        #[allow(missing_docs)] // the variants are named after the functions
        pub enum Call {
            $($call,)*
        }

        /// The table of calls, in the order of [`Call`]'s variants.
        pub const CALLS: &[CallInfo] = &[
            $(CallInfo {
                call: Call::$call,
                kind: $kind,
                driver: &[$(stringify!($driver)),*],
                runtime: &[$(stringify!($runtime)),*],
                $($field: $value,)*
                ..PLAIN
            },)*
        ];

        /// Driver functions that return the addresses of other functions. The library intercepts them, so that it can
        /// return the addresses of its own functions instead.
        pub const LOOK_UPS: &[&str] = &[$(stringify!($look_up)),*];

        /// A function with which a profiler attaches or releases CUPTI.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        #[allow(missing_docs)] // the variants are named after the functions
        pub enum CuptiCall {
            $($cupti,)*
        }

        /// The CUPTI functions that are intercepted. A call of one of these functions shows that another profiler uses
        /// CUPTI. CUPTI serves only one profiler at a time.
        pub const CUPTI_CALLS: &[(CuptiCall, &[&str])] =
            &[$((CuptiCall::$cupti, &[$(stringify!($cupti_name)),*])),*];

        /// A function with which a program creates, checks or destroys NCCL communicators, or with which ranks
        /// communicate.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        #[allow(missing_docs)] // the variants are named after the functions
        pub enum NcclCall {
            $($nccl,)*
        }

        /// The NCCL functions that are intercepted. Their arguments show the ranks and the collectives of a
        /// communicator. The library stores the most recent collectives, so that hangs can be diagnosed.
        pub const NCCL_CALLS: &[(NcclCall, &[&str])] =
            &[$((NcclCall::$nccl, &[$(stringify!($nccl_name)),*])),*];
    };
}
cuda_calls!(table);

/// Functions that are not intercepted, but may occur in the records of other tools, grouped by their purpose. The names
/// are without `_v2` and without the suffixes for the per-thread default stream.
///
/// Source: `cuda.h` and `cuda_runtime_api.h` of CUDA 13.2. Functions that CUDA 13.2 no longer has are from CUDA 12.
pub(crate) const OTHERS: &[(CallPurpose, &[&str])] = &[
    (
        AsyncCopy(Other),
        &[
            "cuMemcpy2DAsync",
            "cuMemcpy3DAsync",
            "cuMemcpy3DBatchAsync",
            "cuMemcpy3DPeerAsync",
            "cuMemcpy3DWithAttributesAsync",
            "cuMemcpyAtoHAsync",
            "cuMemcpyBatchAsync",
            "cuMemcpyHtoAAsync",
            "cuMemcpyPeerAsync",
            "cuMemcpyWithAttributesAsync",
            "cudaMemcpy2DAsync",
            "cudaMemcpy2DFromArrayAsync",
            "cudaMemcpy2DToArrayAsync",
            "cudaMemcpy3DAsync",
            "cudaMemcpy3DBatchAsync",
            "cudaMemcpy3DPeerAsync",
            "cudaMemcpy3DWithAttributesAsync",
            "cudaMemcpyBatchAsync",
            "cudaMemcpyFromArrayAsync",
            "cudaMemcpyFromSymbolAsync",
            "cudaMemcpyPeerAsync",
            "cudaMemcpyToArrayAsync",
            "cudaMemcpyToSymbolAsync",
            "cudaMemcpyWithAttributesAsync",
        ],
    ),
    (
        HostFunction,
        &["cudaLaunchHostFunc", "cudaStreamAddCallback"],
    ),
    (
        CallPurpose::Wait(Wait::Context),
        &["cudaExecutionCtxSynchronize", "cudaThreadSynchronize"],
    ),
    (
        Memory,
        &[
            "cuMemAllocManaged",
            "cuMemAllocPitch",
            "cudaFreeArray",
            "cudaFreeMipmappedArray",
            "cudaMalloc3D",
            "cudaMalloc3DArray",
            "cudaMallocArray",
            "cudaMallocManaged",
            "cudaMallocMipmappedArray",
            "cudaMallocPitch",
        ],
    ),
    (
        Compilation,
        &[
            "cuLinkAddData",
            "cuLinkAddFile",
            "cuLinkComplete",
            "cuModuleLoadFatBinary",
            "nvrtcCompileProgram",
        ],
    ),
];

/// Pairs of a function and the CUDA function with the same purpose. The first function of a pair is one of three kinds:
/// a HIP function whose name does not follow CUDA's, a function that CUDA has removed, or a copy to or from a symbol.
pub(crate) const SAME: &[(&str, &str)] = &[
    ("cudaLaunch", "cudaLaunchKernel"),
    ("cudaMemcpyFromSymbol", "cudaMemcpy"),
    ("cudaMemcpyToSymbol", "cuMemcpyHtoD"),
    ("hipExtLaunchKernel", "cudaLaunchKernel"),
    ("hipExtModuleLaunchKernel", "cuLaunchKernel"),
    ("hipHccModuleLaunchKernel", "cuLaunchKernel"),
    ("hipMemcpyWithStream", "cudaMemcpy"),
    ("hipModuleLaunchKernel", "cuLaunchKernel"),
];

/// Parts of the names of driver functions that submit no work to the GPU, such as queries, waits and bookkeeping. These
/// parts classify functions that have no row in the table, among them functions of later CUDA releases.
pub(crate) const WITHOUT_WORK: &[&str] = &[
    "Get",
    "Query",
    "Synchronize",
    "cuCtx",
    "cuEvent",
    "cuOccupancy",
    "cuStreamWait",
    "cuFuncSet",
    "cuPointer",
];

/// Prefixes of the names of driver functions that need no current CUDA context. The library puts no gate (code that
/// runs before the function) in front of them.
pub(crate) const WITHOUT_CONTEXT: &[&str] = &[
    "cuGetProcAddress",
    "cuGetExportTable",
    "cuGetError",
    "cuDriverGetVersion",
    // Functions with this prefix have more arguments than a gate (the code in front of a function) can pass.
    "cuTensorMap",
];
