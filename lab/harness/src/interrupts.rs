//! Interrupts that a CPU has taken, by the kernel's count.

/// Returns the number of interrupts of a CPU so far, of the kinds whose names `is_counted` accepts, such as `LOC` or `TLB`.
/// `None` where the kernel does not tell them.
pub fn of_cpu(cpu: usize, is_counted: impl Fn(&str) -> bool) -> Option<u64> {
    sum(&std::fs::read_to_string("/proc/interrupts").ok()?, cpu, is_counted)
}

/// Returns the sum of a CPU's column in the text of `/proc/interrupts`.
fn sum(text: &str, cpu: usize, is_counted: impl Fn(&str) -> bool) -> Option<u64> {
    let name = format!("CPU{cpu}");
    let mut lines = text.lines();
    let column = lines.next()?.split_whitespace().position(|word| word == name)?;
    let counts: Vec<u64> = lines
        .filter_map(|line| {
            let (name, counts) = line.split_once(':')?;
            // Rows of errors have one count for all CPUs, which is no number of this one.
            let count = counts.split_whitespace().nth(column)?.parse::<u64>().ok()?;
            is_counted(name.trim()).then_some(count)
        })
        .collect();
    (!counts.is_empty()).then(|| counts.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_column_of_a_cpu_is_added_up() {
        // As proc(5) has it; CPU 1 is offline.
        let text = "           CPU0       CPU2
             4:         10         20   IO-APIC   4-edge      ttyS0
           LOC:        100        200   Local timer interrupts
           TLB:          1          2   TLB shootdowns
           ERR:          7\n";
        assert_eq!(sum(text, 2, |_| true), Some(222));
        assert_eq!(sum(text, 0, |name| ["LOC", "TLB"].contains(&name)), Some(101));
        assert_eq!([sum(text, 1, |_| true), sum(text, 2, |name| name == "IPI0")], [None, None]);
    }
}
