//! Levels of event classes.

/// How important the events of a class are, the most important first. Names and numbers are those of LTTng-UST and of
/// the attribute `loglevel` in traces; the first seven are those of syslog(3).
#[repr(u8)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The system cannot be used.
    Emerg = 0,
    /// Somebody must act at once.
    Alert = 1,
    /// A critical condition.
    Crit = 2,
    /// An error.
    Err = 3,
    /// A warning.
    Warning = 4,
    /// Normal, but significant.
    Notice = 5,
    /// Information.
    Info = 6,
    /// Debugging of several programs together.
    DebugSystem = 7,
    /// Debugging of a program: several processes.
    DebugProgram = 8,
    /// Debugging of a process: several modules.
    DebugProcess = 9,
    /// Debugging of a module: an executable or a library.
    DebugModule = 10,
    /// Debugging of a compilation unit.
    DebugUnit = 11,
    /// Debugging of a function.
    DebugFunction = 12,
    /// Debugging of a line.
    DebugLine = 13,
    /// Debugging of any other kind.
    Debug = 14,
}

impl Level {
    /// All levels, in the order of their numbers.
    pub const ALL: [Level; 15] = {
        use Level::*;
        [
            Emerg,
            Alert,
            Crit,
            Err,
            Warning,
            Notice,
            Info,
            DebugSystem,
            DebugProgram,
            DebugProcess,
            DebugModule,
            DebugUnit,
            DebugFunction,
            DebugLine,
            Debug,
        ]
    };

    /// The names of all levels, as messages list them.
    pub const LIST: &'static str = "EMERG, ALERT, CRIT, ERR, WARNING, NOTICE, INFO, DEBUG_SYSTEM, DEBUG_PROGRAM, \
                                    DEBUG_PROCESS, DEBUG_MODULE, DEBUG_UNIT, DEBUG_FUNCTION, DEBUG_LINE, DEBUG";

    /// Returns the level's name.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Emerg => "EMERG",
            Level::Alert => "ALERT",
            Level::Crit => "CRIT",
            Level::Err => "ERR",
            Level::Warning => "WARNING",
            Level::Notice => "NOTICE",
            Level::Info => "INFO",
            Level::DebugSystem => "DEBUG_SYSTEM",
            Level::DebugProgram => "DEBUG_PROGRAM",
            Level::DebugProcess => "DEBUG_PROCESS",
            Level::DebugModule => "DEBUG_MODULE",
            Level::DebugUnit => "DEBUG_UNIT",
            Level::DebugFunction => "DEBUG_FUNCTION",
            Level::DebugLine => "DEBUG_LINE",
            Level::Debug => "DEBUG",
        }
    }

    /// Returns the level with this number, if there is one.
    pub const fn from_number(number: u8) -> Option<Level> {
        if (number as usize) < Level::ALL.len() { Some(Level::ALL[number as usize]) } else { None }
    }

    /// Returns the level with exactly this name, if there is one.
    pub const fn named(name: &str) -> Option<Level> {
        let mut number = 0;
        while number < Level::ALL.len() {
            let level = Level::ALL[number];
            if is_same(level.name().as_bytes(), name.as_bytes()) {
                return Some(level);
            }
            number += 1;
        }
        None
    }

    /// Parses what a person writes: a name in upper or lower case, the longer or shorter form of some, or a number.
    pub fn parse(text: &str) -> Option<Level> {
        const OTHER_NAMES: [(&str, Level); 4] =
            [("EMERGENCY", Level::Emerg), ("CRITICAL", Level::Crit), ("ERROR", Level::Err), ("WARN", Level::Warning)];
        let of_number = || Level::from_number(text.parse().ok()?);
        let other = || OTHER_NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, level)| *level);
        let of_name = Level::ALL.into_iter().find(|level| level.name().eq_ignore_ascii_case(text));
        of_name.or_else(other).or_else(of_number)
    }

    /// Returns the byte that stands for a class's level in its description and in messages: 0 if it has none, otherwise
    /// the level's number plus 1.
    pub const fn byte_of(level: Option<Level>) -> u8 {
        match level {
            Some(level) => level as u8 + 1,
            None => 0,
        }
    }

    /// Reads [`Level::byte_of`]. Returns the outer `None` for any other byte.
    pub const fn of_byte(byte: u8) -> Option<Option<Level>> {
        match byte {
            0 => Some(None),
            _ => match Level::from_number(byte - 1) {
                Some(level) => Some(Some(level)),
                None => None,
            },
        }
    }
}

/// Whether two texts are the same, in a constant.
const fn is_same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut index = 0;
    while index < a.len() {
        if a[index] != b[index] {
            return false;
        }
        index += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::ToString;
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn levels_have_numbers_and_names() {
        for (number, level) in Level::ALL.into_iter().enumerate() {
            assert_eq!((level as usize, Level::from_number(number as u8)), (number, Some(level)));
            // The name is that of the variant: `DEBUG_SYSTEM` of `DebugSystem`.
            assert_eq!(level.name().replace('_', ""), format!("{level:?}").to_uppercase());
            let name = level.name();
            for text in [name, &name.to_lowercase(), &number.to_string()] {
                assert_eq!(Level::parse(text), Some(level), "{text}");
            }
            assert_eq!(Level::named(name), Some(level));
            assert_eq!(Level::of_byte(Level::byte_of(Some(level))), Some(Some(level)));
        }
        assert_eq!(Level::LIST, Level::ALL.map(Level::name).to_vec().join(", "));
        for (text, level) in [("warn", Level::Warning), ("Error", Level::Err), ("EMERGENCY", Level::Emerg)] {
            assert_eq!(Level::parse(text), Some(level), "{text}");
        }
        for text in ["", "WARNINGS", "15", "-1", "256", "debug-line", "WARNING "] {
            assert_eq!(Level::parse(text), None, "{text}");
        }
        for name in ["", "warning", "WARN", "WARNIN", "4"] {
            assert_eq!(Level::named(name), None, "{name}");
        }
        let unknown: Vec<u8> = (0..=u8::MAX).filter(|byte| Level::of_byte(*byte).is_none()).collect();
        assert_eq!((Level::of_byte(0), unknown), (Some(None), (16..=u8::MAX).collect()));
        assert_eq!(Level::from_number(15), None);
    }
}
