//! Supervisor of a standing cluster: it restarts replicas that died, carries out requests, and ends
//! faults at their end times.

use std::time::{Duration, Instant, SystemTime};

use rand::SeedableRng as _;
use rand_pcg::Pcg64Mcg;
use tokio::sync::mpsc::Receiver;
use tokio::time::MissedTickBehavior;

use super::control::{
    ControlRequest, ControlResponse, FaultReport, NodeReport, Overview, PendingRequest, ReplySender,
};
use super::restarts::RestartPolicy;
use crate::backend::RunPlan;
use crate::backend::local::{DownReason, LocalCluster, ProcessEvent, ProcessState};
use crate::fault::{self, Effect, FaultAction, FaultSpec, FaultTarget};
use crate::topology::Topology;

/// Time between two checks of processes and faults.
const TICK: Duration = Duration::from_millis(50);

/// Active fault: its ID, a description, and the effects that are undone when the fault ends.
struct NumberedFault {
    number: u64,
    /// Description of the fault: the action, the targets, and the roles that the request contained.
    text: String,
    effects: Vec<Effect>,
    began: Instant,
    ends: Option<Instant>,
}

/// A cluster, with the restart policies of its replicas and the active faults.
pub(super) struct Supervisor<'a> {
    cluster: LocalCluster,
    topology: &'a Topology,
    restarts: Vec<RestartPolicy>,
    faults: Vec<NumberedFault>,
    /// ID of the newest fault.
    numbered: u64,
    rng: Pcg64Mcg,
}

/// Result of a request: the lines of the answer to the client, or the reason why the supervisor
/// refuses the request.
type ActionResult = Result<Vec<String>, String>;

impl<'a> Supervisor<'a> {
    pub fn new(cluster: LocalCluster, plan: &'a RunPlan<'a>, restart: bool) -> Supervisor<'a> {
        let topology = plan.topology();
        Supervisor {
            cluster,
            topology,
            restarts: vec![RestartPolicy::new(restart, Instant::now()); topology.len()],
            faults: Vec::new(),
            numbered: 0,
            rng: Pcg64Mcg::seed_from_u64(u64::from(std::process::id())),
        }
    }

    pub fn cluster(&self) -> &LocalCluster {
        &self.cluster
    }

    /// Serves requests until a client asks to end the cluster. Returns the sender for the response
    /// to this client.
    pub async fn run(&mut self, mut requests: Receiver<PendingRequest>) -> Option<ReplySender> {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(PendingRequest { request, reply }) = requests.recv() => {
                    if request == ControlRequest::Down {
                        return Some(reply);
                    }
                    let response = self.answer(request).await;
                    reply.send(&response).await;
                }
                _ = tick.tick() => self.poll(Instant::now()),
            }
        }
    }

    /// Ends all replicas, including paused replicas.
    pub fn end(&mut self) {
        self.cluster.stop();
    }

    async fn answer(&mut self, request: ControlRequest) -> ControlResponse {
        self.poll(Instant::now());
        let result = match request {
            ControlRequest::Here | ControlRequest::Down => Ok(Vec::new()),
            ControlRequest::Status => return ControlResponse::Status(self.overview()),
            ControlRequest::Begin { fault, key } => self.begin(fault, key).await,
            ControlRequest::Start(targets) => self.start_or_resume(&targets, Effect::Start).await,
            ControlRequest::Resume(targets) => self.start_or_resume(&targets, Effect::Resume).await,
            ControlRequest::Heal(numbers) => self.heal(&numbers),
        };
        match result {
            Ok(lines) => ControlResponse::Done(lines),
            Err(why) => ControlResponse::Refused(why),
        }
    }

    /// Handles events of processes, starts the replicas for which the restart is due, and ends the
    /// faults for which the end is due.
    fn poll(&mut self, now: Instant) {
        for (site, happened) in self.cluster.poll() {
            let name = self.name(site);
            match happened {
                ProcessEvent::Ended(DownReason::Died(how)) => {
                    self.restarts[site].died(now);
                    let then = self.restarts[site].words(now, name);
                    tracing::warn!(site = name, how, "a replica died; {then}");
                }
                ProcessEvent::Ended(DownReason::Refused(why)) => {
                    self.restarts[site].refused(now);
                    let then = self.restarts[site].words(now, name);
                    tracing::warn!(site = name, why, "a replica refuses to run; {then}");
                }
                ProcessEvent::Ended(why) => {
                    self.restarts[site].reset(now);
                    tracing::info!(site = name, %why, "a replica ended");
                }
                ProcessEvent::Started => tracing::info!(site = name, "a replica started again"),
                ProcessEvent::NotStarted(error) => {
                    tracing::error!(site = name, error, "a replica could not be started again");
                }
            }
        }
        for site in 0..self.restarts.len() {
            if self.restarts[site].is_due(now) {
                self.start_again(site, now);
            }
        }
        let over = |active: &NumberedFault| active.ends.is_some_and(|ends| ends <= now);
        while let Some(place) = self.faults.iter().position(over) {
            for line in self.undo(place) {
                tracing::info!("{line}");
            }
        }
    }

    /// Starts a replica that died. A failed start is treated as another death of the replica.
    fn start_again(&mut self, site: usize, now: Instant) {
        let name = self.name(site);
        match self.cluster.perform(Effect::Start(site)) {
            Ok(()) => tracing::info!(site = name, "a replica that died is started again"),
            Err(error) => {
                self.restarts[site].died(now);
                let then = self.restarts[site].words(now, name);
                tracing::error!(
                    site = name,
                    error = format!("{error:#}"),
                    "a replica cannot be started; {then}"
                );
            }
        }
    }

    async fn begin(&mut self, fault: FaultSpec, key: Option<String>) -> ActionResult {
        check(&fault, self.topology)?;
        let roles = self.cluster.roles(key.as_deref().map(str::as_bytes)).await;
        let mut context = roles.fault_context(self.topology, &mut self.rng);
        let named = fault.named(&mut context)?;
        let effects = named.begin(&mut context)?;
        let mut done = Vec::new();
        let mut problems = Vec::new();
        for effect in effects {
            match self.cluster.perform(effect) {
                Ok(()) => done.push(effect),
                Err(error) => problems.push(format!("{error:#}")),
            }
        }
        if done.is_empty() {
            return Err(problems.join("; "));
        }
        for site in done
            .iter()
            .filter(|effect| !affects_link(**effect))
            .flat_map(|e| e.sites())
        {
            self.restarts[site].reset(Instant::now());
        }
        let stays = fault.until_s.is_none() && fault.action != FaultAction::Restart;
        let mut lines = self.remember(&fault, fault.in_words(&named), done);
        lines.extend(problems);
        lines.extend(stays.then(|| self.majority_lost()).flatten());
        Ok(lines)
    }

    /// Stores the effects of a fault, so that they can be undone when the fault ends. Returns the
    /// lines of the answer to the client.
    fn remember(&mut self, fault: &FaultSpec, text: String, effects: Vec<Effect>) -> Vec<String> {
        let of_process = !fault.action.affects_links() && fault.action != FaultAction::FillDisk;
        let sites = self.names_of(&effects);
        tracing::info!("{text}: {sites}");
        if of_process && (fault.until_s.is_none() || fault.action == FaultAction::Restart) {
            // Nothing is stored, because the status of the processes shows their state.
            return vec![format!(
                "{}: {sites}{}",
                fault.action.name(),
                undo_hint(fault.action, &sites)
            )];
        }
        self.numbered += 1;
        let began = Instant::now();
        let ends = fault.until_s.map(|s| began + Duration::from_secs_f64(s));
        let until = match fault.until_s {
            Some(s) => format!("it ends by itself in {s} s"),
            None => format!("`leasehold fault heal {}` ends it", self.numbered),
        };
        let line = format!("fault {}: {text}; {until}", self.numbered);
        self.faults.push(NumberedFault {
            number: self.numbered,
            text,
            effects,
            began,
            ends,
        });
        vec![line]
    }

    /// Starts or resumes the targeted replicas.
    async fn start_or_resume(
        &mut self,
        targets: &[FaultTarget],
        effect: fn(usize) -> Effect,
    ) -> ActionResult {
        let roles = self.cluster.roles(None).await;
        let sites = roles
            .fault_context(self.topology, &mut self.rng)
            .resolve(targets)?;
        let mut done = Vec::new();
        let mut problems = Vec::new();
        for site in sites {
            match self.cluster.perform(effect(site)) {
                Ok(()) => {
                    self.restarts[site].reset(Instant::now());
                    self.forget(effect(site));
                    done.push(self.name(site));
                }
                Err(error) => problems.push(format!("{error:#}")),
            }
        }
        if done.is_empty() {
            return Err(problems.join("; "));
        }
        let verb = match effect(0) {
            Effect::Start(_) => "started",
            _ => "resumed",
        };
        let mut lines = vec![format!("{verb}: {}", done.join(", "))];
        lines.extend(problems);
        Ok(lines)
    }

    /// Removes from the active faults every effect that `inverse` undoes. A user has already undone
    /// this effect, so the end of the fault must not undo it again.
    fn forget(&mut self, inverse: Effect) {
        for active in &mut self.faults {
            active
                .effects
                .retain(|effect| effect.inverse() != Some(inverse));
        }
        self.faults.retain(|active| !active.effects.is_empty());
    }

    fn heal(&mut self, numbers: &[u64]) -> ActionResult {
        let known: Vec<u64> = self.faults.iter().map(|active| active.number).collect();
        if known.is_empty() {
            return Err(
                "there is no fault to heal; `leasehold cluster status` shows replicas that \
                        are down or paused"
                    .to_owned(),
            );
        }
        if let Some(unknown) = numbers.iter().find(|number| !known.contains(number)) {
            let known: Vec<String> = known.iter().map(u64::to_string).collect();
            return Err(format!(
                "there is no fault {unknown}; there are {}, see `leasehold fault list`",
                known.join(", ")
            ));
        }
        let mut lines = Vec::new();
        for number in known {
            if numbers.is_empty() || numbers.contains(&number) {
                let place = self
                    .faults
                    .iter()
                    .position(|active| active.number == number);
                lines.extend(place.map(|place| self.undo(place)).unwrap_or_default());
            }
        }
        Ok(lines)
    }

    /// Ends the fault at the index `place` in the list of faults. Returns the lines of the answer
    /// to the client.
    fn undo(&mut self, place: usize) -> Vec<String> {
        let NumberedFault {
            number,
            text,
            effects,
            ..
        } = self.faults.remove(place);
        let mut lines = vec![format!("fault {number} ended: {text}")];
        for inverse in effects.into_iter().filter_map(Effect::inverse) {
            match self.cluster.perform(inverse) {
                Ok(()) => {}
                Err(error) => lines.push(format!("{error:#}")),
            }
        }
        lines
    }

    /// Returns a warning if no majority of the replicas is running; otherwise `None`.
    fn majority_lost(&self) -> Option<String> {
        let statuses = self.cluster.process_statuses();
        let n = statuses.len();
        let down = statuses
            .iter()
            .filter(|found| found.state != ProcessState::Up)
            .count();
        (down > n - (n / 2 + 1)).then(|| {
            format!(
                "{down} of {n} replicas do not run now. Without a majority nothing is written, and \
                 reads end with their leases, until enough of them run again: `leasehold cluster \
                 start NODE`, or `resume`"
            )
        })
    }

    fn overview(&self) -> Overview {
        let now = Instant::now();
        let statuses = self.cluster.process_statuses().into_iter().enumerate();
        let nodes = statuses.map(|(site, found)| {
            let site_name = self.name(site);
            let (state, why) = match found.state {
                ProcessState::Up => ("up", None),
                ProcessState::Paused => ("paused", None),
                ProcessState::Ending => ("ending", None),
                ProcessState::Down(why) => {
                    let then = self.restarts[site].words(now, site_name);
                    ("down", Some(format!("{why}; {then}")))
                }
            };
            let since = SystemTime::now().duration_since(found.since);
            NodeReport {
                site: site_name.to_owned(),
                state: state.to_owned(),
                for_s: since.unwrap_or_default().as_secs_f64(),
                why,
                process: found.process,
            }
        });
        Overview {
            nodes: nodes.collect(),
            faults: self
                .faults
                .iter()
                .map(|active| self.report(active, now))
                .collect(),
        }
    }

    fn report(&self, active: &NumberedFault, now: Instant) -> FaultReport {
        let left = |ends: Instant| ends.saturating_duration_since(now).as_secs_f64();
        FaultReport {
            number: active.number,
            text: active.text.clone(),
            for_s: now.duration_since(active.began).as_secs_f64(),
            ends_in_s: active.ends.map(left),
        }
    }

    fn name(&self, site: usize) -> &'a str {
        self.topology.names()[site]
    }

    fn names_of(&self, effects: &[Effect]) -> String {
        let mut sites: Vec<usize> = effects.iter().flat_map(|effect| effect.sites()).collect();
        sites.sort_unstable();
        sites.dedup();
        let names = sites.into_iter().map(|site| self.name(site));
        names.collect::<Vec<_>>().join(", ")
    }
}

fn affects_link(effect: Effect) -> bool {
    matches!(effect, Effect::Fail { .. } | Effect::Mend { .. })
}

/// Returns a note for users that states how to undo an action on a process.
fn undo_hint(action: FaultAction, sites: &str) -> String {
    let nodes = sites.replace(", ", " ");
    match action {
        FaultAction::Kill | FaultAction::Stop => {
            format!("; mend: `leasehold cluster start {nodes}`")
        }
        FaultAction::Pause => format!("; mend: `leasehold cluster resume {nodes}`"),
        FaultAction::Restart => "; each starts again when it has ended".to_owned(),
        _ => String::new(),
    }
}

/// Returns an error if a fault is invalid. The message names the command's options for the invalid
/// parts.
fn check(fault: &FaultSpec, topology: &Topology) -> Result<(), String> {
    if let Some(s) = fault.until_s
        && !(s > 0.0 && s <= fault::TIME_S_MAX)
    {
        return Err(format!(
            "--for {s}: seconds are needed, more than 0 and at most a year"
        ));
    }
    let mut alone = fault.clone();
    // The check refuses a fault without an end as a lost majority. Here the client can undo it at
    // any time.
    if alone.action != FaultAction::Restart && alone.until_s.is_none() {
        alone.until_s = Some(1.0);
    }
    fault::check(&[alone], topology).map_err(|refused| {
        let field = refused.field.trim_start_matches("fault.1.");
        let option = match field {
            "target" => "NODE".to_owned(),
            other => format!("--{}", other.replace('_', "-")),
        };
        format!("{option} {}: {}", refused.found, refused.fix)
    })
}
