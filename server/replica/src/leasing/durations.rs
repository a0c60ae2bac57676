//! Rules for the lease durations that an operator may set, and reasons for refusing all others.

use std::time::Duration;

use leasehold_leases::LeaseParams;

use crate::lease_set::Durations;

/// Checks whether these durations may be put in force. If not, returns a text with the reason and
/// with values that would be accepted. `distance` is the longest measured round trip.
pub(super) fn unfit(params: &LeaseParams, distance: Duration, force: bool) -> Option<String> {
    refuse_absurd(params)
        .or_else(|| refuse_durations(params, distance))
        .or_else(|| refuse_long(params, force))
}

/// Refuses absurdly long durations, which no peer would believe.
fn refuse_absurd(params: &LeaseParams) -> Option<String> {
    let spans = [
        ("t_lease_ms", params.t_lease),
        ("t_guard_ms", params.t_guard),
        ("renew_ms", params.renew),
        ("grace_ms", params.t_grace),
    ];
    if let Some((name, span)) = spans.into_iter().find(|(_, span)| *span > Durations::MAX) {
        return Some(format!(
            "{name}: {} ms is more than a day; {} is the most",
            ms(span),
            ms(Durations::MAX)
        ));
    }
    let renew = params.renew;
    (renew < Durations::RENEW_MIN).then(|| {
        format!(
            "renew_ms: {} ms would leave time for nothing else; 1 is the least",
            ms(renew)
        )
    })
}

/// Refuses durations that contradict each other, or that are too short for the round trips.
fn refuse_durations(params: &LeaseParams, distance: Duration) -> Option<String> {
    let longest = format!("{:.1} ms, the longest measured round trip", ms(distance));
    if params.t_guard < distance {
        let least = distance.as_micros().div_ceil(1000);
        return Some(format!(
            "t_guard_ms: {} ms is shorter than {longest}: every promise would come too late; the smallest that would \
             do now is {least}",
            ms(params.t_guard)
        ));
    }
    let needed = params.renew + distance;
    if params.t_grace < needed {
        let least = needed.as_micros().div_ceil(1000);
        return Some(format!(
            "grace_ms: {} ms is shorter than renew_ms, {} ms, and {longest}: replicas that live would be suspected; the \
             smallest that would do now is {least}",
            ms(params.t_grace),
            ms(params.renew)
        ));
    }
    if params.t_lease < needed {
        let least = needed.as_micros().div_ceil(1000);
        return Some(format!(
            "t_lease_ms: {} ms is shorter than renew_ms, {} ms, and {longest}: leases would end between renewals; the \
             smallest that would do now is {least}",
            ms(params.t_lease),
            ms(params.renew)
        ));
    }
    // This check comes last because its error names no value.
    let error = params.check().err()?;
    Some(format!("durations: {error}"))
}

fn refuse_long(params: &LeaseParams, force: bool) -> Option<String> {
    let spans = [
        ("t_lease_ms", params.t_lease),
        ("t_guard_ms", params.t_guard),
        ("grace_ms", params.t_grace),
    ];
    let (name, span) = spans
        .into_iter()
        .find(|(_, span)| *span > Durations::LONG)?;
    (!force).then(|| {
        format!(
            "{name}: {} ms is more than {} ms: writes wait as long for a holder that is gone, and a replica after each \
             restart, for as long as the cluster lives; --force if that is meant",
            ms(span),
            Durations::LONG.as_millis()
        )
    })
}

fn ms(span: Duration) -> f64 {
    (span.as_secs_f64() * 1e4).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each case has the durations (t_lease, t_guard, renew, t_grace) in ms, and the texts that the
    /// refusal must contain. The longest round trip is 100.2 ms in all cases.
    #[test]
    fn durations_shorter_than_the_distances_permit_are_refused_with_what_would_do() {
        let distance = Duration::from_micros(100_200);
        for ([t_lease, t_guard, renew, t_grace], parts) in [
            ([1000, 750, 150, 2000], None),
            ([251, 101, 150, 251], None),
            (
                [250, 101, 150, 2000],
                Some(["t_lease_ms: 250 ms", "is 251"]),
            ),
            (
                [1000, 100, 150, 2000],
                Some(["t_guard_ms: 100 ms", "is 101"]),
            ),
            ([1000, 101, 150, 250], Some(["grace_ms: 250 ms", "is 251"])),
            (
                [150, 750, 150, 2000],
                Some(["t_lease_ms: 150 ms", "is 251"]),
            ),
            (
                [1000, 750, 0, 2000],
                Some(["durations", "longer than nothing"]),
            ),
        ] {
            let ms = Duration::from_millis;
            let params = LeaseParams {
                t_lease: ms(t_lease),
                t_guard: ms(t_guard),
                renew: ms(renew),
                t_grace: ms(t_grace),
                ..LeaseParams::default()
            };
            let refusal = refuse_durations(&params, distance);
            let Some(parts) = parts else {
                assert_eq!(refusal, None);
                continue;
            };
            let refusal = refusal.expect("refused");
            for part in parts {
                assert!(refusal.contains(part), "{part:?} is not in {refusal:?}");
            }
        }
    }

    #[test]
    fn durations_that_nobody_can_mean_are_refused_even_if_forced() {
        let params = |t_lease, renew| LeaseParams {
            t_lease,
            renew,
            ..LeaseParams::default()
        };
        let (day, usual) = (Durations::MAX, Duration::from_millis(150));
        assert_eq!(refuse_absurd(&params(day, usual)), None);
        let longer = params(day + Duration::from_millis(1), usual);
        let refusal = refuse_absurd(&longer).expect("refused");
        assert!(refusal.contains("t_lease_ms: 86400001 ms"), "{refusal}");
        let refusal = refuse_absurd(&params(day, Duration::from_micros(999)));
        assert!(refusal.expect("refused").contains("renew_ms: 1 ms"));
    }

    #[test]
    fn long_durations_are_meant() {
        let long = |t_grace| LeaseParams {
            t_grace,
            ..LeaseParams::default()
        };
        assert_eq!(refuse_long(&long(Durations::LONG), false), None);
        let longer = long(Durations::LONG + Duration::from_millis(1));
        let refusal = refuse_long(&longer, false).expect("refused");
        assert!(refusal.contains("grace_ms: 60001 ms"), "{refusal}");
        assert_eq!(refuse_long(&longer, true), None);
    }
}
