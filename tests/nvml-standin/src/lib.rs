//! A stand-in for `libnvidia-ml.so`: loaded through the same `dlopen` path as NVIDIA's own.
//!
//! It exports only the functions in use; a missing one arrives at the caller as "symbol not
//! found", as with an old driver. Which GPUs exist and what ails them stands in a script that a
//! test edits while it runs (`script`); who holds memory is found in the world (`holders`), so a
//! leaked process really shows. Its figures are figures of nothing: every GPU's name is made to
//! contain "stand-in", and so is the driver's version, and nobody may print them without.
//!
//! The shapes are those of NVML's public C interface.

#![expect(unsafe_code, reason = "a C interface: callers hand over pointers to write results to")]

mod holders;
mod script;

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::{Mutex, PoisonError};

use holders::{Holder, holders};
use script::{Driver, Gpu, ProcessList, Script};

/// `nvmlReturn_t`.
type Return = c_uint;
const SUCCESS: Return = 0;
const INVALID_ARGUMENT: Return = 2;
const NOT_SUPPORTED: Return = 3;
const NOT_FOUND: Return = 6;
const INSUFFICIENT_SIZE: Return = 7;
const DRIVER_NOT_LOADED: Return = 9;
const GPU_IS_LOST: Return = 15;
const LIB_RM_VERSION_MISMATCH: Return = 18;

/// What NVML says for "this number is not known".
const NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;
/// What NVML says for "no instance".
const NO_INSTANCE: c_uint = c_uint::MAX;

/// `nvmlDevice_t`: the place of the UUID in `UUIDS`, counted from 1. Never followed as a pointer.
type Device = *mut c_void;

/// Every UUID ever named by the script: a handle keeps its GPU whatever becomes of the others.
static UUIDS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Debug)]
pub struct Memory {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlUtilization_t`.
#[repr(C)]
#[derive(Debug)]
pub struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// `nvmlProcessInfo_t`.
#[repr(C)]
#[derive(Debug)]
pub struct ProcessInfo {
    pid: c_uint,
    used_gpu_memory: c_ulonglong,
    gpu_instance_id: c_uint,
    compute_instance_id: c_uint,
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> Return {
    code(driver().map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> Return {
    SUCCESS
}

/// # Safety
/// `version` is null or has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> Return {
    // SAFETY: as this function's own contract.
    code(driver().and_then(|_| unsafe { put_text(version, length, "stand-in") }))
}

/// # Safety
/// `count` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> Return {
    let number = driver().map(|s| c_uint::try_from(s.gpus.len()).unwrap_or(c_uint::MAX));
    // SAFETY: as this function's own contract.
    code(number.and_then(|n| unsafe { put(count, n) }))
}

/// # Safety
/// `device` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut Device) -> Return {
    let gpu = driver().and_then(|s| s.gpus.get(index as usize).cloned().ok_or(INVALID_ARGUMENT));
    // SAFETY: as this function's own contract.
    code(gpu.and_then(attached).and_then(|g| unsafe { put(device, handle(&g.uuid)) }))
}

/// # Safety
/// `uuid` is null or a C string; `device` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut Device) -> Return {
    if uuid.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null, and a C string by this function's own contract.
    let uuid = unsafe { CStr::from_ptr(uuid) }.to_string_lossy();
    let gpu = driver().and_then(|s| s.gpus.into_iter().find(|g| g.uuid == uuid).ok_or(NOT_FOUND));
    // SAFETY: as this function's own contract.
    code(gpu.and_then(attached).and_then(|g| unsafe { put(device, handle(&g.uuid)) }))
}

/// # Safety
/// `uuid` is null or has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(device: Device, uuid: *mut c_char, length: c_uint) -> Return {
    // SAFETY: as this function's own contract.
    code(gpu(device).and_then(|g| unsafe { put_text(uuid, length, &g.uuid) }))
}

/// # Safety
/// `name` is null or has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(device: Device, name: *mut c_char, length: c_uint) -> Return {
    // SAFETY: as this function's own contract.
    code(gpu(device).and_then(|g| unsafe { put_text(name, length, &label(&g.name)) }))
}

/// # Safety
/// `memory` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, memory: *mut Memory) -> Return {
    // SAFETY: as this function's own contract.
    code(gpu(device).and_then(|g| memory_of(&g)).and_then(|m| unsafe { put(memory, m) }))
}

/// # Safety
/// `utilization` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(
    device: Device,
    utilization: *mut Utilization,
) -> Return {
    let rates = gpu(device).and_then(|g| {
        let scripted = g.utilisation.filter(|_| !g.mig).ok_or(NOT_SUPPORTED)?;
        let busy = !holders(&g.folder).is_empty();
        let gpu = if busy { scripted.busy } else { scripted.idle };
        Ok(Utilization { gpu, memory: gpu / 2 })
    });
    // SAFETY: as this function's own contract.
    code(rates.and_then(|r| unsafe { put(utilization, r) }))
}

/// # Safety
/// `degrees` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperature(
    device: Device,
    _sensor: c_uint,
    degrees: *mut c_uint,
) -> Return {
    let value = gpu(device).and_then(|g| g.temperature.ok_or(NOT_SUPPORTED));
    // SAFETY: as this function's own contract.
    code(value.and_then(|v| unsafe { put(degrees, v) }))
}

/// # Safety
/// `milliwatts` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerUsage(device: Device, milliwatts: *mut c_uint) -> Return {
    let value = gpu(device).and_then(|g| g.power.ok_or(NOT_SUPPORTED));
    // SAFETY: as this function's own contract.
    code(value.and_then(|v| unsafe { put(milliwatts, v) }))
}

/// # Safety
/// `milliwatts` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetEnforcedPowerLimit(device: Device, milliwatts: *mut c_uint) -> Return {
    let value = gpu(device).and_then(|g| g.power_limit.ok_or(NOT_SUPPORTED));
    // SAFETY: as this function's own contract.
    code(value.and_then(|v| unsafe { put(milliwatts, v) }))
}

/// # Safety
/// `current` and `pending` are null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: Device,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> Return {
    code(gpu(device).and_then(|g| {
        // SAFETY: as this function's own contract, for both.
        unsafe {
            put(current, c_uint::from(g.mig))?;
            put(pending, c_uint::from(g.mig))
        }
    }))
}

/// # Safety
/// `count` may be read and written; `infos` has room for that many, and may be null for none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: Device,
    count: *mut c_uint,
    infos: *mut ProcessInfo,
) -> Return {
    let listed = gpu(device).and_then(|g| processes(&g));
    // SAFETY: as this function's own contract.
    code(listed.and_then(|l| unsafe { put_list(count, infos, l) }))
}

/// # Safety
/// `count` may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: Device,
    count: *mut c_uint,
    infos: *mut ProcessInfo,
) -> Return {
    let none = gpu(device).and_then(|g| list_given(&g)).map(|()| Vec::new());
    // SAFETY: as this function's own contract.
    code(none.and_then(|l| unsafe { put_list(count, infos, l) }))
}

fn code(result: Result<(), Return>) -> Return {
    result.err().unwrap_or(SUCCESS)
}

/// The script, when the driver of that script answers.
fn driver() -> Result<Script, c_uint> {
    let script = Script::now().ok_or(DRIVER_NOT_LOADED)?;
    match script.driver {
        Driver::Loaded => Ok(script),
        Driver::NotLoaded => Err(DRIVER_NOT_LOADED),
        Driver::VersionMismatch => Err(LIB_RM_VERSION_MISMATCH),
    }
}

/// The GPU of a handle. One that the script no longer names has fallen off too.
fn gpu(device: Device) -> Result<Gpu, Return> {
    let script = driver()?;
    let uuids = UUIDS.lock().unwrap_or_else(PoisonError::into_inner);
    let uuid = (device as usize).checked_sub(1).and_then(|at| uuids.get(at)).ok_or(INVALID_ARGUMENT)?;
    script.gpus.into_iter().find(|g| g.uuid == *uuid).ok_or(GPU_IS_LOST).and_then(attached)
}

fn attached(gpu: Gpu) -> Result<Gpu, Return> {
    if gpu.fallen_off { Err(GPU_IS_LOST) } else { Ok(gpu) }
}

fn handle(uuid: &str) -> Device {
    let mut uuids = UUIDS.lock().unwrap_or_else(PoisonError::into_inner);
    let at = uuids.iter().position(|u| u == uuid).unwrap_or_else(|| {
        uuids.push(uuid.to_owned());
        uuids.len() - 1
    });
    std::ptr::without_provenance_mut(at + 1)
}

fn label(name: &str) -> String {
    if name.contains("stand-in") { name.to_owned() } else { format!("{name} (stand-in)") }
}

fn memory_of(gpu: &Gpu) -> Result<Memory, Return> {
    if !gpu.memory_supported {
        return Err(NOT_SUPPORTED);
    }
    let foreign = gpu.foreign.iter().map(|f| f.memory);
    let held = holders(&gpu.folder).into_iter().map(|h| h.bytes);
    let used = foreign
        .chain(held)
        .chain([gpu.memory_baseline, gpu.memory_unexplained])
        .fold(0_u64, u64::saturating_add)
        .min(gpu.memory_total);
    let used = gpu.memory_used_override.unwrap_or(used);
    Ok(Memory {
        version: c_uint::try_from(size_of::<Memory>() | (2 << 24)).unwrap_or(0),
        total: gpu.memory_total,
        reserved: 0,
        free: gpu.memory_total.saturating_sub(used),
        used,
    })
}

fn list_given(gpu: &Gpu) -> Result<(), Return> {
    match gpu.process_list {
        ProcessList::Given => Ok(()),
        ProcessList::NotSupported => Err(NOT_SUPPORTED),
        ProcessList::NotFound => Err(NOT_FOUND),
    }
}

fn processes(gpu: &Gpu) -> Result<Vec<ProcessInfo>, Return> {
    list_given(gpu)?;
    let foreign = gpu.foreign.iter().map(|f| Holder { pid: f.pid, bytes: f.memory });
    Ok(foreign
        .chain(holders(&gpu.folder))
        .map(|holder| ProcessInfo {
            pid: holder.pid,
            used_gpu_memory: if gpu.process_memory { holder.bytes } else { NOT_AVAILABLE },
            gpu_instance_id: NO_INSTANCE,
            compute_instance_id: NO_INSTANCE,
        })
        .collect())
}

/// # Safety
/// `to` is null or may be written.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Return> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and writable by this function's own contract.
    unsafe { to.write(value) };
    Ok(())
}

/// # Safety
/// `to` is null or has room for `length` bytes.
unsafe fn put_text(to: *mut c_char, length: c_uint, text: &str) -> Result<(), Return> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if text.len() + 1 > length as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    for (at, byte) in text.bytes().chain([0]).enumerate() {
        // SAFETY: `at` is below `length`, which `to` has room for.
        unsafe { to.add(at).write(c_int::from(byte) as c_char) };
    }
    Ok(())
}

/// NVML's way of listing: too little room is answered with the number needed.
///
/// # Safety
/// `count` is null or may be read and written; `to` has room for `*count` items.
unsafe fn put_list(count: *mut c_uint, to: *mut ProcessInfo, list: Vec<ProcessInfo>) -> Result<(), Return> {
    if count.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and readable by this function's own contract.
    let room = unsafe { count.read() } as usize;
    let needed = list.len();
    // SAFETY: not null, and writable by this function's own contract.
    unsafe { put(count, c_uint::try_from(needed).unwrap_or(c_uint::MAX)) }?;
    if needed > room || (to.is_null() && needed > 0) {
        return Err(INSUFFICIENT_SIZE);
    }
    for (at, item) in list.into_iter().enumerate() {
        // SAFETY: `at` is below `*count`, which `to` has room for.
        unsafe { to.add(at).write(item) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_says_stand_in() {
        assert_eq!(label("A 24 GiB"), "A 24 GiB (stand-in)");
        assert_eq!(label("stand-in A"), "stand-in A");
    }

    #[test]
    fn a_handle_keeps_its_gpu() {
        let a = handle("GPU-a");
        let b = handle("GPU-b");
        assert_ne!(a, b);
        assert_eq!(handle("GPU-a"), a);
        assert_eq!(gpu(std::ptr::null_mut()).err(), Some(DRIVER_NOT_LOADED));
    }
}
