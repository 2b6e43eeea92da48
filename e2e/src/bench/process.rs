//! What a process has used, from `/proc`.

use anyhow::{Context, Result};

/// CPU µs that the threads of the process have used so far. Exact where `/proc` counts in nanoseconds, but threads
/// that have ended meanwhile are missing: brokers keep theirs.
///
/// # Errors
///
/// When there is no such process.
pub fn cpu_micros(pid: u32) -> Result<f64> {
    let mut nanos = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid}"))? {
        // A thread may end between the listing and the look.
        let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
        let on_cpu = text.split_whitespace().next().context("a schedstat line")?;
        nanos += on_cpu.parse::<u64>().context("nanoseconds")?;
    }
    Ok(std::time::Duration::from_nanos(nanos).as_secs_f64() * 1e6)
}

/// Bytes that the process has caused to be written to disk so far.
///
/// # Errors
///
/// When there is no such process, or it belongs to somebody else.
pub fn written_bytes(pid: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io"))?;
    let bytes = text.lines().find_map(|line| line.strip_prefix("write_bytes: ")).context("write_bytes")?;
    bytes.parse().context("a number of bytes")
}

/// Resident memory in bytes.
///
/// # Errors
///
/// When there is no such process.
pub fn resident_bytes(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("VmRSS")?;
    let kib: u32 =
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).context("a number of KiB")?;
    Ok(f64::from(kib) * 1024.0)
}
