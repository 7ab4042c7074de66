//! What a driver may say and be believed (F22 to F24).
//!
//! Counters underflow, "not available" arrives as the largest number, and a laptop reports a
//! power limit of zero: what can't be true is absent, so that nobody plans with it.

/// No card has this much; above it a figure is an underflow.
const MEMORY_MAX: u64 = 1 << 44;
/// Percent.
const UTILISATION_MAX: u32 = 100;
/// Milliwatts; ten times what one card draws.
const POWER_MAX_MW: u32 = 10_000_000;
/// Degrees Celsius: hotter than silicon lives.
const TEMPERATURE_MAX_C: u32 = 150;

/// Total and used bytes; used above total makes only `used` absent.
pub(super) fn memory(total: u64, used: u64) -> (Option<u64>, Option<u64>) {
    let total = Some(total).filter(|t| (1..=MEMORY_MAX).contains(t));
    (total, total.and_then(|t| Some(used).filter(|u| *u <= t)))
}

/// Bytes of one process; more than the card has is nobody's.
pub(super) fn process_memory(bytes: u64, total: Option<u64>) -> Option<u64> {
    Some(bytes).filter(|b| *b <= total.unwrap_or(MEMORY_MAX))
}

/// Percent; a card that is divided has no figure for the whole (F21).
pub(super) fn utilisation(percent: u32, mig: bool) -> Option<u32> {
    Some(percent).filter(|p| *p <= UTILISATION_MAX && !mig)
}

/// Milliwatts drawn.
pub(super) fn power(milliwatts: u32) -> Option<u32> {
    Some(milliwatts).filter(|p| *p <= POWER_MAX_MW)
}

/// Milliwatts allowed; a limit of nothing is no limit.
pub(super) fn power_limit(milliwatts: u32) -> Option<u32> {
    power(milliwatts).filter(|p| *p > 0)
}

/// Degrees Celsius.
pub(super) fn temperature(degrees: u32) -> Option<u32> {
    Some(degrees).filter(|t| *t <= TEMPERATURE_MAX_C)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f23_used_above_total_is_absent() {
        assert_eq!(memory(100, 101), (Some(100), None));
        assert_eq!(memory(100, 100), (Some(100), Some(100)));
        assert_eq!(memory(100, 17_179_869_183 << 30), (Some(100), None));
    }

    #[test]
    fn f24_an_underflow_is_absent() {
        assert_eq!(memory(u64::MAX - 5, 3), (None, None));
        assert_eq!(memory(0, 0), (None, None));
        assert_eq!(process_memory(17_592_186_044_134 << 20, None), None);
        assert_eq!(process_memory(101, Some(100)), None);
    }

    #[test]
    fn f21_a_divided_card_has_no_utilisation() {
        assert_eq!(utilisation(0, true), None);
        assert_eq!(utilisation(101, false), None);
        assert_eq!(utilisation(100, false), Some(100));
    }

    #[test]
    fn f18_a_power_limit_of_zero_is_none() {
        assert_eq!(power_limit(0), None);
        assert_eq!(power(0), Some(0));
        assert_eq!(power(u32::MAX), None);
        assert_eq!(temperature(4_000), None);
    }
}
