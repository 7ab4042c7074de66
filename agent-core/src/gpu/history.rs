//! Ten minutes of figures for each GPU, one a second, in memory: what the window draws.

use std::collections::{BTreeMap, VecDeque};

use gpunion_protocol::gpu::{GpuPoint, GpuSample, GpuState};
use gpunion_protocol::ids::GpuUuid;

const POINTS: usize = 600;
/// Milliseconds; a little under a second, so that jitter drops no point.
const APART: u64 = 900;
/// More GPUs than a machine has; a driver that invents UUIDs must not fill memory.
const GPUS: usize = 64;

#[derive(Debug, Default)]
pub(super) struct History {
    rings: BTreeMap<GpuUuid, VecDeque<GpuPoint>>,
}

impl History {
    pub(super) fn add(&mut self, sample: &GpuSample) {
        if sample.state != GpuState::Ok {
            return;
        }
        if !self.rings.contains_key(&sample.uuid) && self.rings.len() >= GPUS {
            return;
        }
        let ring = self.rings.entry(sample.uuid.clone()).or_default();
        if ring.back().is_some_and(|last| (sample.taken_at - last.at).0 < APART) {
            return;
        }
        if ring.len() == POINTS {
            ring.pop_front();
        }
        ring.push_back(GpuPoint {
            at: sample.taken_at,
            memory_used: sample.memory_used,
            utilisation: sample.utilisation,
            power_mw: sample.power_mw,
            temperature_c: sample.temperature_c,
        });
    }

    /// Oldest first.
    pub(super) fn of(&self, uuid: &GpuUuid) -> Vec<GpuPoint> {
        self.rings.get(uuid).map(|ring| ring.iter().copied().collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use gpunion_protocol::time::BootMs;

    use super::super::verify::tests::sample;
    use super::*;

    #[test]
    fn keeps_ten_minutes_and_one_point_a_second() {
        let mut history = History::default();
        for tick in 0..20_000_u64 {
            let mut at = sample(5, vec![]);
            at.taken_at = BootMs(tick * 100);
            history.add(&at);
        }
        let points = history.of(&GpuUuid("GPU-1".into()));
        assert_eq!(points.len(), POINTS);
        assert!(points.windows(2).all(|w| (w[1].at - w[0].at).0 >= APART));
        assert!(points.last().is_some_and(|p| p.at.0 > 1_998_000));
        assert!(history.of(&GpuUuid("GPU-2".into())).is_empty());
    }
}
