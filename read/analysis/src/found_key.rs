//! The key by which begins and ends belong together, where threads mislead.

/// How the slices of one name are paired, if not by thread alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundKey {
    /// Name of the slices.
    pub name: String,
    /// Fields that identify them. Empty if none does: begins and ends are on different threads, and no slice is certain.
    pub fields: Vec<String>,
    /// Number of begins and ends that are left alone by these fields, or by thread if there are none.
    pub alone: u64,
    /// Number of begins and ends that are left alone by thread, and of pairs by thread that the fields contradict.
    pub alone_by_thread: u64,
}

impl FoundKey {
    /// Returns a sentence for people.
    pub fn text(&self) -> String {
        let FoundKey { name, fields, alone, alone_by_thread } = self;
        match fields.as_slice() {
            [] => format!(
                "begins and ends of {name} are on different threads ({alone} are alone), and no field that both have tells which belong \
                 together: its slices are not certain; --key names fields"
            ),
            fields => {
                let alone = if *alone > 0 { format!("; {alone} begins and ends are alone") } else { String::new() };
                let fields = fields.join(", ");
                format!("{name} is paired by {fields}, since {alone_by_thread} do not fit by thread{alone}")
            }
        }
    }
}
