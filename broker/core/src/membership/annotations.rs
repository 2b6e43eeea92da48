//! How the content of leases is written into Kubernetes `Lease` objects: the holder's identity, `leaseTransitions` and
//! annotations. Text that people read with `kubectl`; versioned, because brokers of two releases read each other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::lease::{
    GroupLease, Holder, LeaseContent, LeaseKey, MemberLease, MemberState, NamedMember, ProtocolRange,
    Verdict, View,
};
use super::timings::{Mode, Timings};
use crate::member::{Incarnation, Member, MemberEpoch, MemberId, OwnerEpoch};

/// Format of everything below. An object without it and without a holder is new.
pub const FORMAT: &str = "tidemill.dev/format";
/// Value of [`FORMAT`] that this release writes.
pub const FORMAT_CURRENT: &str = "1";
/// UID of a pod that an administrator declared dead; written by the operator, never by a broker.
pub const DECLARED_DEAD: &str = "tidemill.dev/declared-dead";

const CONTAINER: &str = "tidemill.dev/container";
const RENEWAL: &str = "tidemill.dev/renewal";
const ENDPOINT: &str = "tidemill.dev/endpoint";
const STATE: &str = "tidemill.dev/state";
const PROTOCOL: &str = "tidemill.dev/protocol";
const REACHABLE: &str = "tidemill.dev/reachable";
const ROUTE_DIGEST: &str = "tidemill.dev/route-digest";
const VIEW_NUMBER: &str = "tidemill.dev/view-number";
const MODE: &str = "tidemill.dev/mode";
const TIMINGS: &str = "tidemill.dev/timings-ms";
const EPOCH: &str = "tidemill.dev/epoch";
const MEMBER_EPOCH: &str = "tidemill.dev/member-epoch";
const VIEW_MEMBERS: &str = "tidemill.dev/view-members";
const VIEW_HISTORY: &str = "tidemill.dev/view-history";
const VERDICT: &str = "tidemill.dev/verdict";

/// The parts of a `Lease` object that carry content. [`encode`] always yields the same annotation keys for one kind of
/// lease, so a merge patch of them leaves nothing old behind; annotations of others are to be kept. `renewTime` and
/// `acquireTime` mean nothing here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaseFields {
    /// `spec.holderIdentity`; `None` or empty: nobody.
    pub holder_identity: Option<String>,
    /// `spec.leaseTransitions`; missing = 0.
    pub transitions: i32,
    /// `spec.leaseDurationSeconds`, for people only.
    pub duration_secs: Option<i32>,
    /// `metadata.annotations`; on decoding, others than ours are ignored.
    pub annotations: BTreeMap<String, String>,
}

/// A lease object that cannot be read. The caller reports it and treats the object as if it did not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Written by a release that this one does not know.
    #[error("lease has format {found}, this release reads {FORMAT_CURRENT}")]
    Format {
        /// What it says.
        found: String,
    },
    /// A field is missing or malformed.
    #[error("lease field {field} is missing or malformed")]
    Field {
        /// Which.
        field: &'static str,
    },
}

/// Writes `content` for the API. `leaseTransitions` repeats the epoch and stays at `i32::MAX` beyond it.
#[must_use]
pub fn encode(content: &LeaseContent) -> LeaseFields {
    match content {
        LeaseContent::Member(lease) => encode_member(lease),
        LeaseContent::Group(lease) => encode_group(lease),
        LeaseContent::View(view) => encode_view(view),
    }
}

/// Reads the object `key`.
///
/// # Errors
///
/// [`DecodeError`]; the object must not be acted upon.
pub fn decode(key: &LeaseKey, fields: &LeaseFields) -> Result<LeaseContent, DecodeError> {
    let text = |field: &'static str| fields.annotations.get(field).map(String::as_str);
    match text(FORMAT) {
        Some(FORMAT_CURRENT) | None => {}
        Some(found) => return Err(DecodeError::Format { found: found.to_owned() }),
    }
    let reader = Reader { fields };
    match key {
        LeaseKey::Member(_) => reader.member().map(LeaseContent::Member),
        LeaseKey::Group(_) => reader.group().map(LeaseContent::Group),
        LeaseKey::View => reader.view().map(LeaseContent::View),
    }
}

fn encode_member(lease: &MemberLease) -> LeaseFields {
    let timings = lease.timings;
    let container = lease.holder.as_ref().and_then(|holder| holder.container_id.clone()).unwrap_or_default();
    let reachable: Vec<_> = lease.reachable.iter().map(MemberId::as_str).collect();
    let annotations = [
        (EPOCH, lease.epoch.0.to_string()),
        (CONTAINER, container),
        (RENEWAL, lease.renewal.to_string()),
        (ENDPOINT, lease.endpoint.clone()),
        (STATE, state_name(lease.state).to_owned()),
        (PROTOCOL, format!("{}-{}", lease.protocol.min, lease.protocol.max)),
        (REACHABLE, reachable.join(",")),
        (ROUTE_DIGEST, format!("{:032x}", lease.route_digest)),
        (VIEW_NUMBER, lease.view_number.to_string()),
        (MODE, mode_name(lease.mode).to_owned()),
        (
            TIMINGS,
            [timings.renew, timings.stop_after, timings.duration, timings.hold_limit]
                .map(|duration| duration.as_millis().to_string())
                .join("/"),
        ),
    ];
    LeaseFields {
        holder_identity: lease
            .holder
            .as_ref()
            .map(|holder| format!("{}_{}_{}", holder.member.id, holder.pod_uid, holder.member.incarnation)),
        transitions: i32::try_from(lease.epoch.0).unwrap_or(i32::MAX),
        duration_secs: i32::try_from(timings.duration.as_secs().max(1)).ok(),
        annotations: with_format(annotations),
    }
}

fn encode_group(lease: &GroupLease) -> LeaseFields {
    let member_epoch = lease.holder.as_ref().map_or(0, |holder| holder.epoch.0);
    LeaseFields {
        holder_identity: lease
            .holder
            .as_ref()
            .map(|holder| format!("{}_{}", holder.member.id, holder.member.incarnation)),
        transitions: i32::try_from(lease.epoch.0).unwrap_or(i32::MAX),
        duration_secs: None,
        annotations: with_format([
            (EPOCH, lease.epoch.0.to_string()),
            (MEMBER_EPOCH, member_epoch.to_string()),
        ]),
    }
}

fn encode_view(view: &View) -> LeaseFields {
    let history: Vec<_> =
        view.history.iter().map(|(number, members)| format!("{number}={}", members_text(members))).collect();
    let verdict = view.verdict.as_ref().map(|verdict| {
        let dropped: Vec<_> =
            verdict.dropped.iter().map(|member| format!("{}:{}", member.id, member.incarnation)).collect();
        format!("{}={}={}", verdict.number, verdict.by, dropped.join(","))
    });
    LeaseFields {
        holder_identity: None,
        transitions: 0,
        duration_secs: None,
        annotations: with_format([
            (VIEW_NUMBER, view.number.to_string()),
            (VIEW_MEMBERS, members_text(&view.members)),
            (VIEW_HISTORY, history.join(";")),
            (VERDICT, verdict.unwrap_or_default()),
        ]),
    }
}

fn with_format<const N: usize>(annotations: [(&'static str, String); N]) -> BTreeMap<String, String> {
    let mut all: BTreeMap<_, _> =
        annotations.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    all.insert(FORMAT.to_owned(), FORMAT_CURRENT.to_owned());
    all
}

fn members_text(members: &BTreeMap<MemberId, NamedMember>) -> String {
    let each: Vec<_> = members
        .values()
        .map(|named| format!("{}:{}:{}", named.member.id, named.member.incarnation, named.epoch.0))
        .collect();
    each.join(",")
}

fn state_name(state: MemberState) -> &'static str {
    match state {
        MemberState::Joining => "Joining",
        MemberState::Serving => "Serving",
        MemberState::Draining => "Draining",
        MemberState::Leaving => "Leaving",
    }
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Hold => "hold",
        Mode::Disconnect => "disconnect",
    }
}

/// Reads the fields of one object.
struct Reader<'a> {
    fields: &'a LeaseFields,
}

impl<'a> Reader<'a> {
    fn text(&self, field: &'static str) -> Result<&'a str, DecodeError> {
        self.fields.annotations.get(field).map(String::as_str).ok_or(DecodeError::Field { field })
    }

    fn number<T: std::str::FromStr>(&self, field: &'static str) -> Result<T, DecodeError> {
        parse(self.text(field)?, field)
    }

    fn holder(&self) -> Option<&'a str> {
        self.fields.holder_identity.as_deref().filter(|identity| !identity.is_empty())
    }

    fn is_new(&self) -> bool {
        self.holder().is_none() && !self.fields.annotations.contains_key(FORMAT)
    }

    /// The epoch; of an object that no broker has written yet, what `leaseTransitions` says.
    fn epoch<T: TryFrom<i32> + std::str::FromStr>(&self) -> Result<T, DecodeError> {
        if self.fields.annotations.contains_key(EPOCH) {
            return self.number(EPOCH);
        }
        T::try_from(self.fields.transitions).map_err(|_| DecodeError::Field { field: "leaseTransitions" })
    }

    fn member(&self) -> Result<MemberLease, DecodeError> {
        let epoch = MemberEpoch(self.epoch()?);
        let declared_dead = self.fields.annotations.get(DECLARED_DEAD).filter(|uid| !uid.is_empty()).cloned();
        if self.is_new() {
            return Ok(MemberLease { declared_dead, ..MemberLease::vacant(epoch) });
        }
        let holder = self.holder().map(|identity| self.member_holder(identity)).transpose()?;
        let route_digest = u128::from_str_radix(self.text(ROUTE_DIGEST)?, 16)
            .map_err(|_| DecodeError::Field { field: ROUTE_DIGEST })?;
        Ok(MemberLease {
            holder,
            epoch,
            renewal: self.number(RENEWAL)?,
            endpoint: self.text(ENDPOINT)?.to_owned(),
            state: self.state()?,
            protocol: self.protocol()?,
            reachable: list(self.text(REACHABLE)?, ',').map(MemberId::new).collect::<BTreeSet<_>>(),
            route_digest,
            view_number: self.number(VIEW_NUMBER)?,
            mode: self.mode()?,
            timings: self.timings()?,
            declared_dead,
        })
    }

    fn member_holder(&self, identity: &str) -> Result<Holder, DecodeError> {
        let malformed = DecodeError::Field { field: "holderIdentity" };
        let mut parts = identity.rsplitn(3, '_');
        let (Some(incarnation), Some(pod_uid), Some(name)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(malformed);
        };
        let container = self.text(CONTAINER)?;
        Ok(Holder {
            member: Member {
                id: MemberId::new(name),
                incarnation: incarnation_of(incarnation, "holderIdentity")?,
            },
            pod_uid: pod_uid.to_owned(),
            container_id: (!container.is_empty()).then(|| container.to_owned()),
        })
    }

    fn group(&self) -> Result<GroupLease, DecodeError> {
        let epoch = OwnerEpoch(self.epoch()?);
        let Some(identity) = self.holder() else {
            return Ok(GroupLease { holder: None, epoch });
        };
        let (name, incarnation) =
            identity.rsplit_once('_').ok_or(DecodeError::Field { field: "holderIdentity" })?;
        let member =
            Member { id: MemberId::new(name), incarnation: incarnation_of(incarnation, "holderIdentity")? };
        let holder = NamedMember { member, epoch: MemberEpoch(self.number(MEMBER_EPOCH)?) };
        Ok(GroupLease { holder: Some(holder), epoch })
    }

    fn view(&self) -> Result<View, DecodeError> {
        if self.is_new() {
            return Ok(View::default());
        }
        let mut history = BTreeMap::new();
        for entry in list(self.text(VIEW_HISTORY)?, ';') {
            let (number, members) =
                entry.split_once('=').ok_or(DecodeError::Field { field: VIEW_HISTORY })?;
            history.insert(parse(number, VIEW_HISTORY)?, members_of(members, VIEW_HISTORY)?);
        }
        Ok(View {
            number: self.number(VIEW_NUMBER)?,
            members: members_of(self.text(VIEW_MEMBERS)?, VIEW_MEMBERS)?,
            verdict: self.verdict()?,
            history,
        })
    }

    fn verdict(&self) -> Result<Option<Verdict>, DecodeError> {
        let malformed = || DecodeError::Field { field: VERDICT };
        let text = self.text(VERDICT)?;
        if text.is_empty() {
            return Ok(None);
        }
        let (number, rest) = text.split_once('=').ok_or_else(malformed)?;
        let (by, dropped) = rest.split_once('=').ok_or_else(malformed)?;
        let mut verdict =
            Verdict { number: parse(number, VERDICT)?, by: MemberId::new(by), dropped: Vec::new() };
        for entry in list(dropped, ',') {
            let (name, incarnation) = entry.rsplit_once(':').ok_or_else(malformed)?;
            let incarnation = incarnation_of(incarnation, VERDICT)?;
            verdict.dropped.push(Member { id: MemberId::new(name), incarnation });
        }
        Ok(Some(verdict))
    }

    fn state(&self) -> Result<MemberState, DecodeError> {
        match self.text(STATE)? {
            "Joining" => Ok(MemberState::Joining),
            "Serving" => Ok(MemberState::Serving),
            "Draining" => Ok(MemberState::Draining),
            "Leaving" => Ok(MemberState::Leaving),
            _ => Err(DecodeError::Field { field: STATE }),
        }
    }

    fn mode(&self) -> Result<Mode, DecodeError> {
        match self.text(MODE)? {
            "hold" => Ok(Mode::Hold),
            "disconnect" => Ok(Mode::Disconnect),
            _ => Err(DecodeError::Field { field: MODE }),
        }
    }

    fn protocol(&self) -> Result<ProtocolRange, DecodeError> {
        let (min, max) =
            self.text(PROTOCOL)?.split_once('-').ok_or(DecodeError::Field { field: PROTOCOL })?;
        Ok(ProtocolRange { min: parse(min, PROTOCOL)?, max: parse(max, PROTOCOL)? })
    }

    fn timings(&self) -> Result<Timings, DecodeError> {
        let mut parts = self.text(TIMINGS)?.splitn(4, '/');
        let mut next = || {
            let millis = parts.next().ok_or(DecodeError::Field { field: TIMINGS })?;
            parse(millis, TIMINGS).map(Duration::from_millis)
        };
        Ok(Timings { renew: next()?, stop_after: next()?, duration: next()?, hold_limit: next()? })
    }
}

fn members_of(text: &str, field: &'static str) -> Result<BTreeMap<MemberId, NamedMember>, DecodeError> {
    let mut members = BTreeMap::new();
    for entry in list(text, ',') {
        let mut parts = entry.rsplitn(3, ':');
        let (Some(epoch), Some(incarnation), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(DecodeError::Field { field });
        };
        let id = MemberId::new(name);
        let member = Member { id: id.clone(), incarnation: incarnation_of(incarnation, field)? };
        members.insert(id, NamedMember { member, epoch: MemberEpoch(parse(epoch, field)?) });
    }
    Ok(members)
}

/// The parts of `text`; none if it is empty.
fn list(text: &str, separator: char) -> impl Iterator<Item = &str> {
    text.split(separator).filter(|part| !part.is_empty())
}

fn incarnation_of(text: &str, field: &'static str) -> Result<Incarnation, DecodeError> {
    u64::from_str_radix(text, 16).map(Incarnation).map_err(|_| DecodeError::Field { field })
}

fn parse<T: std::str::FromStr>(text: &str, field: &'static str) -> Result<T, DecodeError> {
    text.parse().map_err(|_| DecodeError::Field { field })
}
