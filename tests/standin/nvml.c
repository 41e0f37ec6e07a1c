/* A stand-in for NVML (libnvidia-ml.so.1): two GPUs whose metrics follow a formula, so that a test can compute what
 * a sampler must have read. The declarations are those of nvml.h, and of GPM since driver 525.
 *
 *     cc -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 nvml.c -o libnvidia-ml.so.1
 *
 * In the n-th GPM sample of GPU d (n from 1), compared with the previous sample, metric m has the value 100 * d + m
 * + n / 8. GPU 0 has the higher PCI address. GPU 1 has no NVLink (metrics 60 and 61). STANDIN_NVML is a
 * comma-separated list:
 *   no-gpm      the GPU is not a Hopper
 *   gpm-denied  only root may read its counters
 *   gpm-ends    only root may read them from the fourth sample on
 *   denied      only root may use NVML
 *   mixed       the GPUs are of different models
 *   none        there is no GPU
 *   hangs       the first query of a GPU's power never returns
 *   mig         the GPUs are divided into parts
 *   no-reasons  the GPUs do not state the reasons for their clocks
 *   no-limits   the GPUs do not state their power limits
 *
 * STANDIN_NVML_STATE is the path of a file that is read at each query. Each line is a word and numbers:
 *   clock MHZ         the SM clock
 *   reasons BITS      the reasons for the clocks
 *   limit WATTS       the power limit that the driver enforces; the default is 700 W
 *   process PID SM    a process uses both GPUs, and takes SM % of the SMs' time; -1: its share is not known
 * The energy counter of a GPU grows by 100 J with each query. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
} nvmlReturn_t;

typedef struct nvmlDevice_st {
    unsigned int index;
} *nvmlDevice_t;

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned int gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct nvmlGpmSample_st {
    unsigned int device, number;
} *nvmlGpmSample_t;

typedef struct {
    unsigned int metricId;
    nvmlReturn_t nvmlReturn;
    double value;
    struct {
        char *shortName, *longName, *unit;
    } metricInfo;
} nvmlGpmMetric_t;

typedef struct {
    unsigned int version, numMetrics;
    nvmlGpmSample_t sample1, sample2;
    nvmlGpmMetric_t metrics[]; /* the length depends on the driver's version */
} nvmlGpmMetricsGet_t;

typedef struct {
    unsigned int version, isSupportedDevice;
} nvmlGpmSupport_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

typedef struct {
    unsigned int pid;
    unsigned long long timeStamp;
    unsigned int smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

enum { GPUS = 2, GPM_VERSION = 1, MEMORY_VERSION = 2 };

static struct nvmlDevice_st devices[GPUS] = {{0}, {1}};
static unsigned int samples[GPUS];

static bool is(const char *word) {
    const char *list = getenv("STANDIN_NVML");
    size_t length = strlen(word);
    for (const char *at = list; at && (at = strstr(at, word)); at += length)
        if ((at == list || at[-1] == ',') && (at[length] == ',' || !at[length])) return true;
    return false;
}

/* Calls `take` for each line of the state file that begins with `word`, with the line's numbers. */
static void state(const char *word, void (*take)(void *to, long first, long second), void *to) {
    const char *path = getenv("STANDIN_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[128], found[32];
    while (file && fgets(line, sizeof line, file)) {
        long first = 0, second = 0;
        if (sscanf(line, "%31s %ld %ld", found, &first, &second) >= 2 && !strcmp(found, word))
            take(to, first, second);
    }
    if (file) fclose(file);
}

static void keep_first(void *to, long first, long second) {
    (void)second;
    *(long *)to = first;
}

enum { PROCESSES = 8 };

typedef struct {
    unsigned int count;
    long pids[PROCESSES], shares[PROCESSES];
} Processes;

static void keep_process(void *to, long pid, long share) {
    Processes *processes = to;
    if (processes->count == PROCESSES) return;
    processes->pids[processes->count] = pid;
    processes->shares[processes->count++] = share;
}

static nvmlReturn_t text(char *to, unsigned int length, const char *from) {
    if (strlen(from) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, from);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void) {
    /* Prints a line. A test checks that no output of NVML gets into the program's output. */
    puts("the stand-in for NVML");
    fflush(stdout);
    return is("denied") ? NVML_ERROR_NO_PERMISSION : NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown(void) {
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    return text(version, length, "580.65.06");
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    *count = is("none") ? 0 : GPUS;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    if (index >= GPUS) return NVML_ERROR_INVALID_ARGUMENT;
    *device = &devices[index];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    return text(name, length, device->index && is("mixed") ? "Stand-in L4" : "Stand-in H200");
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    char made[48];
    snprintf(made, sizeof made, "GPU-%08x-0000-0000-0000-000000000000", 0xa0 + device->index);
    return text(uuid, length, made);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    memset(pci, 0, sizeof *pci);
    pci->bus = device->index ? 0x1a : 0x3b;
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    *rates = (nvmlUtilization_t){71 + device->index, 31 + device->index};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts) {
    while (is("hangs")) pause();
    *milliwatts = 345678 + device->index;
    return NVML_SUCCESS;
}

enum { DEFAULT_LIMIT = 700 }; /* in watts */

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts) {
    (void)device;
    if (is("no-limits")) return NVML_ERROR_NOT_SUPPORTED;
    long watts = DEFAULT_LIMIT;
    state("limit", keep_first, &watts);
    *milliwatts = watts * 1000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned int *milliwatts) {
    (void)device;
    if (is("no-limits")) return NVML_ERROR_NOT_SUPPORTED;
    *milliwatts = DEFAULT_LIMIT * 1000;
    return NVML_SUCCESS;
}

/* clock: 0 graphics, 1 SM, 2 memory, 3 video */
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int clock, unsigned int *megahertz) {
    if (clock != 1) return NVML_ERROR_INVALID_ARGUMENT;
    long now = 1980 + device->index;
    state("clock", keep_first, &now);
    *megahertz = now;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int clock, unsigned int *megahertz) {
    if (clock != 1) return NVML_ERROR_INVALID_ARGUMENT;
    *megahertz = 1980 + device->index;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) {
    (void)device;
    if (is("no-reasons")) return NVML_ERROR_NOT_SUPPORTED;
    long bits = 0;
    state("reasons", keep_first, &bits);
    *reasons = bits;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules) {
    static unsigned long long used[GPUS];
    *millijoules = used[device->index] += 100000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    (void)device;
    *current = *pending = is("mig");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *to) {
    (void)device;
    Processes found = {0};
    state("process", keep_process, &found);
    unsigned int room = *count;
    *count = found.count;
    if (room < found.count) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int at = 0; at < found.count; at++) to[at] = (nvmlProcessInfo_t){.pid = found.pids[at]};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *to,
                                             unsigned int *count, unsigned long long since) {
    (void)device;
    Processes found = {0};
    state("process", keep_process, &found);
    unsigned int room = *count, busy = 0;
    for (unsigned int at = 0; at < found.count; at++) {
        if (found.shares[at] < 0) return NVML_ERROR_NOT_SUPPORTED;
        if (!found.shares[at]) continue;
        if (to && busy < room)
            to[busy] = (nvmlProcessUtilizationSample_t){
                .pid = found.pids[at], .timeStamp = since + 1, .smUtil = found.shares[at]};
        busy++;
    }
    *count = busy;
    if (!busy) return NVML_ERROR_NOT_FOUND;
    return !to || room < busy ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    if (memory->version != (sizeof *memory | MEMORY_VERSION << 24)) return NVML_ERROR_INVALID_ARGUMENT;
    memory->total = 143771ull << 20;
    memory->used = (1000ull + device->index) << 20;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

/* sensor 0 is the GPU's own */
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *degrees) {
    if (sensor) return NVML_ERROR_INVALID_ARGUMENT;
    *degrees = 51 + device->index;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support) {
    (void)device;
    if (support->version != GPM_VERSION) return NVML_ERROR_INVALID_ARGUMENT;
    support->isSupportedDevice = !is("no-gpm");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample) {
    *sample = calloc(1, sizeof **sample);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) {
    free(sample);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) {
    unsigned int number = samples[device->index]++;
    if (is("gpm-denied") || (is("gpm-ends") && number >= 4)) return NVML_ERROR_NO_PERMISSION;
    *sample = (struct nvmlGpmSample_st){device->index, number};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get) {
    if (get->version != GPM_VERSION || get->sample1->device != get->sample2->device ||
        get->sample2->number != get->sample1->number + 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int at = 0; at < get->numMetrics; at++) {
        nvmlGpmMetric_t *metric = &get->metrics[at];
        bool lacks = get->sample2->device == 1 && metric->metricId >= 60;
        metric->nvmlReturn = lacks ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
        metric->value = 100.0 * get->sample2->device + metric->metricId + get->sample2->number / 8.0;
    }
    return NVML_SUCCESS;
}
