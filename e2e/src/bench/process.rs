//! What a process has used, from `/proc`.

use anyhow::{Context, Result};

/// CPU seconds (user and system) that the process has used so far.
///
/// # Errors
///
/// When there is no such process.
pub fn cpu_secs(pid: u32) -> Result<f64> {
    let stat =
        std::fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid}"))?;
    // The second field is the program's name in parentheses and may contain spaces.
    let fields = stat.rsplit_once(')').context("a stat line")?.1;
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    let ticks = u32::try_from(ticks).context("more ticks than a benchmark lasts")?;
    Ok(f64::from(ticks) / f64::from(ticks_per_second()))
}

/// Resident memory in KiB.
///
/// # Errors
///
/// When there is no such process.
pub fn resident_kib(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("VmRSS")?;
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).context("a number of KiB")
}

/// `USER_HZ`: 100 on every Linux this runs on.
fn ticks_per_second() -> u16 {
    100
}
